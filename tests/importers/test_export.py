"""An exported folder is the run: `load` gives the same scores bit for bit."""

import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

import transformer_xl
from tests import kinds
from tests import saved_runs
from tests.config import test_effects
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.importers import decoders
from transformer_xl.importers import export_run
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping
from transformer_xl.importers import model_card
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

ROTATING = kinds.encoding(rotates=True)
TEXTS = {
  "byte": ["abc def\nghi", "a"],
  "character": ["ABC def\nghi", "a"],
  "word": ["the cat sat\non a dog", "mat"],
  "subword": ["the cat sat\non a d\u00f6g", "mat"],
}
# What config.json of HuggingFace has no names for, away from what it implies.
FIELDS = {
  "model.cutoffs": (3, 5),
  "model.memory_start": "masked",
  "model.same_length_window": "mem_len_plus_one",
  "eval.same_length": True,
  "eval.clamp_len": 3,
  "eval.mem_len": (0, 4),
  "score.segment_len": 2,
  "score.mem_len": 4,
  "score.prefix": "a",
  "score.memory": "carry",
  "generate.temperature": 0.0,
  "generate.stop": "a",
  "seed": 5,
}

MODEL_FIELDS = {
  path for path in schema.all_fields() if path.startswith("model.")
}
SMALL = {"model.vocab_size": 20, "model.num_layers": 2, "model.head_dim": 8}
DROPPED = ("input", "output", "projection", "embedding", "weight")
DEFAULTS = load.from_config_dict(load.default())


def exported(folder, **fields):
  run = saved_runs.write(folder / "run", **FIELDS | fields)
  export_run.export(run, str(folder / "exported"))
  return run, folder / "exported"


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
  """A run of bytes, and the folder that it is exported to."""
  return exported(tmp_path_factory.mktemp("unchanged"))


@pytest.fixture
def folder(unchanged, tmp_path):
  """A copy, to be changed."""
  return shutil.copytree(unchanged[1], tmp_path / "exported")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  """A run of the usual layers."""
  return saved_runs.write(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize(
  "kind",
  [
    "byte",
    *(
      pytest.param(kind, marks=pytest.mark.rest)
      for kind in ("character", "word", "subword")
    ),
  ],
)
def test_an_exported_folder_scores_as_its_run(unchanged, tmp_path, kind):
  is_made = kind == "byte"
  run, folder = unchanged if is_made else exported(tmp_path, kind=kind)
  first, second = transformer_xl.load(run), transformer_xl.load(folder)
  assert first.trained.settings() == second.trained.settings()
  assert first.vocabulary.symbols == second.vocabulary.symbols
  one, other = (model.score(TEXTS[kind]) for model in (first, second))
  assert one == other
  assert one[0].num_tokens > 4
  assert first.source != second.source
  for group in ("seed", "score", "generate"):
    assert getattr(first.config, group) == getattr(second.config, group)


@pytest.mark.some(1)
@pytest.mark.parametrize(
  "fields",
  [
    {
      "model.encoding": ROTATING,
      f"model.{ROTATING}.position_scale": 0.5,
      f"model.{ROTATING}.base": 100.0,
      f"model.{ROTATING}.long_factor": 4.0,
      f"model.{ROTATING}.original_len": 40,
    },
    pytest.param({"model.encoding": kinds.sloping()}, marks=pytest.mark.rest),
    pytest.param(
      {
        "model.encoding": "none",
        "model.div_val": 2,
        "model.project_equal_width": False,
      },
      marks=pytest.mark.rest,
    ),
    {
      "model.norm": "rms",
      "model.final_norm": True,
      "model.feed_forward": "swiglu",
      "model.qk_norm": True,
      "model.num_kv_heads": 1,
    },
  ],
)
def test_what_transfoxl_had_not_comes_back(tmp_path, fields):
  run, folder = exported(tmp_path, **{"eval.clamp_len": 0} | fields)
  one, other = (
    transformer_xl.load(path).score(["abc def\nghi"]) for path in (run, folder)
  )
  assert one == other
  names = {path.name for path in folder.iterdir()}
  assert names >= {
    *("modeling_transformer_xl.py", "config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "README.md"),
  }


# What nothing but training reads, or decides how something is computed.
NOT_EXPORTED = {
  *(f"model.{name}_dropout_rate" for name in DROPPED),
  "model.locked_dropout",
  "model.cluster_capacities",
  "model.auxiliary.layers",
  "model.auxiliary.num_targets",
  "model.auxiliary.target_weight",
  "model.attention",
  "model.remat",
  "model.scan_unroll",
}


@pytest.mark.parametrize(
  "path",
  [path for path in test_effects.CASES if path.startswith("model.")],
)
def test_no_field_of_a_model_is_lost_in_silence(path):
  """An export has it, or is refused."""
  value, beside = test_effects.CASES[path]
  beside = {name: each for name, each in beside.items() if name in MODEL_FIELDS}
  written = []
  for updates in (beside, beside | {path: value}):
    config = load.changed(
      DEFAULTS,
      SMALL | {"train.gradient_segments": 2} | updates,
    )
    lengths = mapping.lengths_of(config.score, config.eval)
    try:
      fields = decoders.config_fields(config.model, lengths)
      fields = fields or huggingface.config_fields(config.model, lengths)
    except errors.UserError:
      return
    written.append((fields, huggingface.own_fields(config)))
  is_same = written[0] == written[1]
  assert is_same == (path in NOT_EXPORTED)


@pytest.mark.parametrize(
  "fields",
  [
    *({"layers": (name,)} for name in registry.mixers if name != kinds.USUAL),
    {"layers": ("attention", kinds.compressing())},
    {"layers": ("attention:3",)},
    {"residual": "gru"},
    {"num_memory_tokens": 2},
  ],
  ids=str,
)
def test_other_layers_are_refused_in_one_line(plain, tmp_path, fields):
  """By the configuration: the parameters are not theirs."""
  model = {f"model.{name}": value for name, value in fields.items()}
  model["train.gradient_segments"] = 2
  run = str(shutil.copytree(plain, tmp_path / "run"))
  config = load.from_config_dict(load.saved(run))
  run_record.record(load.changed(config, model), run)
  target = tmp_path / "exported"
  says = rf"model\.{next(iter(fields))}=.* cannot be exported"
  with pytest.raises(errors.UserError, match=says) as caught:
    export_run.export(run, str(target))
  assert "\n" not in str(caught.value)
  assert not target.exists()


def test_a_target_has_to_be_named(plain):
  with pytest.raises(errors.UserError, match="--target is empty"):
    export_run.export(plain, "")


@pytest.mark.rest
def test_the_mode_takes_lengths_and_states_its_result(tmp_path):
  run = saved_runs.write(tmp_path / "run", **FIELDS)
  target = tmp_path / "exported"
  done = subprocess.run(
    [
      *(sys.executable, "-m", "transformer_xl.main", "--mode=export"),
      *("--format=transformers", f"--config=saved:{run}"),
      *(f"--target={target}", "--config.score.mem_len=9"),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert transformer_xl.load(target).trained.reader.mem_len == 9
  assert json.loads((target / "config.json").read_text())["mem_len"] == 9
  result = json.loads((tmp_path / "run/results/export.json").read_text())
  assert result == {"format": "transformers", "target": str(target)}


@pytest.mark.parametrize(
  "entry",
  [
    {"data": {"dir": "/etc"}},
    {"generate": {"prompt_file": "/etc/passwd"}},
    {"train": {"tracker": "wandb"}},
  ],
)
def test_a_foreign_folder_sets_no_other_fields(folder, entry):
  path = folder / "config.json"
  fields = json.loads(path.read_text()) | {"transformer_xl": entry}
  path.write_text(json.dumps(fields))
  with pytest.raises(errors.UserError, match="no field that an export writes"):
    transformer_xl.load(folder)


def test_several_processes_do_not_export_together(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  target = tmp_path / "target"
  with pytest.raises(errors.UserError, match="one host, with JAX_PLATFORMS="):
    export_run.run(
      None, str(tmp_path), target=str(target), format="transformers"
    )
  assert not target.exists()


@pytest.mark.parametrize("name", ["segment_len", "mem_len"])
def test_a_length_that_was_edited_once_of_twice_is_refused(folder, name):
  path = folder / "config.json"
  fields = json.loads(path.read_text())
  fields[name] += 1
  path.write_text(json.dumps(fields))
  with pytest.raises(errors.UserError, match=f"has {name}=") as caught:
    transformer_xl.load(folder)
  assert f"transformer_xl.score.{name}={fields[name] - 1}" in str(caught.value)
  fields["transformer_xl"]["score"][name] += 1
  path.write_text(json.dumps(fields))
  model = transformer_xl.load(folder)
  assert getattr(model.trained.reader, name) == fields[name]


@pytest.mark.rest
def test_the_rules_of_huggingface_would_score_otherwise(folder):
  """Without our entry, memory starts from zeros and the window is shorter."""
  before = transformer_xl.load(folder).score(TEXTS["byte"])[0].nll
  path = folder / "config.json"
  fields = json.loads(path.read_text())
  del fields["transformer_xl"]
  path.write_text(json.dumps(fields))
  model = transformer_xl.load(folder)
  assert model.config.model.memory_start == "zeros"
  assert model.trained.reader.mem_len == 4  # The longest of the evaluation.
  assert abs(model.score(TEXTS["byte"])[0].nll - before) > 1e-3


def test_an_exported_folder_is_imported_with_any_vocabulary(tmp_path):
  _, folder = exported(tmp_path, kind="subword")
  request = import_run.Request("huggingface", str(folder))
  report = import_run.make(request, str(tmp_path / "new"))
  assert report["vocabulary"]["unit"] == "subword"
  assert (tmp_path / "new/vocabulary/meta.json").exists()
  reader = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  ids = transformer_xl.load(folder).vocabulary.encode("the cat")
  assert reader.encode("the cat").ids == ids.tolist()


def test_the_card_has_the_static_evaluations_of_these_parameters(tmp_path):
  run = saved_runs.write(tmp_path / "run", **FIELDS)
  card = {
    "dataset": "books",
    "split": "test",
    "num_tokens": 150,
    "perplexity": 12.34567,
    "bits_per_character": None,
    "segment_len": 8,
    "mem_len": 512,
    "context_len": 0,
    "temperature": 0.9,
    "clamp_len": 0,
    "same_length": False,
    "parameters": "raw",
    "checkpoint_step": saved_runs.STEP,
  }
  others = [{"checkpoint_step": 1}, {"parameters": "ema"}]
  others += [{"dynamic": {"kind": "rms"}}, {"cache": {"size": 100}}]
  os.mkdir(f"{run}/results")
  with open(f"{run}/results/cards.jsonl", "w") as file:
    for one in (card, *({**card, **other} for other in others)):
      file.write(json.dumps(one) + "\n")
    # Damaged by hand.
    own = {"checkpoint_step": saved_runs.STEP, "parameters": "raw"}
    for one in ({}, own, card | {"perplexity": "low"}):
      file.write(json.dumps(one) + "\n")
  folder = tmp_path / "exported"
  export_run.export(run, str(folder))
  (line,) = (folder / "evaluation_cards.jsonl").read_text().splitlines()
  assert json.loads(line) == card
  read = huggingface_hub.ModelCard.load(folder / "README.md")
  (result,) = read.data.eval_results
  assert (result.metric_value, result.dataset_name) == (12.3457, "books")
  assert (
    "| books | test | 150 | 12.346 | - | 8 | 512 | 0 | 0.900 |" in read.text
  )
  assert "after 7 updates" in read.text


def readme(folder):
  return (folder / "README.md").read_text()


def test_the_card_counts_the_parameters_of_the_file(tmp_path):
  """Training has softmaxes for further targets, which are not exported."""
  auxiliary = {
    "model.auxiliary.layers": "own",
    "model.auxiliary.num_targets": 2,
  }
  run = saved_runs.write(tmp_path / "run", **auxiliary)
  export_run.export(run, str(tmp_path / "exported"))
  path = tmp_path / "exported/model.safetensors"
  tensors = safetensors.numpy.load_file(path)
  del tensors["transformer.pos_emb.inv_freq"]  # A constant.
  count = sum(array.size for array in tensors.values())
  assert f"with {count:,}\nparameters" in readme(tmp_path / "exported")


def test_the_card_says_where_the_parameters_are_from(tmp_path):
  """An import knows no text, and none is named for it."""
  run, folder = exported(tmp_path)
  assert "after 7 updates on tiny" in readme(folder)
  config = load.from_config_dict(load.saved(run))
  source = {"workdir": "/home/me/base", "checkpoint_step": 3}
  run_record.record(config, run, initialised_from=source)
  export_run.export(run, str(tmp_path / "tuned"))
  tuned = readme(tmp_path / "tuned")
  assert "after 7 updates on tiny from step 3 of base:" in tuned
  new = str(tmp_path / "new")
  import_run.make(import_run.Request("huggingface", str(folder)), new)
  assert load.saved(new).data.name == "imported"
  export_run.export(new, str(tmp_path / "again"))
  again = readme(tmp_path / "again")
  assert "imported from a checkpoint in huggingface's format:" in again
  assert "updates" not in again


def test_no_name_is_markdown_or_html(tmp_path):
  name = "<img src=x onerror=alert(1)>|a\n# b [c](http://d) `e`"
  run = saved_runs.write(tmp_path / "run", **{"data.name": name})
  card = {
    **{"dataset": name, "split": "test", "mem_len": 4, "perplexity": 2.0},
    **{"checkpoint_step": saved_runs.STEP, "parameters": "raw"},
  }
  metrics_log.append_lines(run, "results/cards.jsonl", [card])
  export_run.export(run, str(tmp_path / "exported"))
  _, _, text = readme(tmp_path / "exported").split("---\n", 2)
  shown = text[: text.index("```python")] + text[text.index("| data") :]
  assert "onerror" in shown
  assert not set("<[`") & set(shown)
  *_, row = shown.strip().splitlines()
  assert row.count("|") == len(model_card._COLUMNS) + 1


def remove(path):
  path.unlink()


def damage(path):
  path.write_text("{")


def remove_all(path):
  shutil.rmtree(path.parent)


@pytest.mark.parametrize("harm", [remove, damage, remove_all])
def test_a_folder_without_its_vocabulary_names_no_other_command(folder, harm):
  """`load` has no flags, and nothing was prepared here."""
  harm(folder / "vocabulary" / "meta.json")
  with pytest.raises(errors.UserError, match=r"restore it|put its file") as one:
    transformer_xl.load(folder)
  assert "data_prep" not in str(one.value)
  assert "with --vocabulary" not in str(one.value)


def test_the_words_alone_are_not_the_vocabulary_of_an_export(tmp_path, folder):
  """They lack the case and the roles, which would give other numbers."""
  (folder / "vocabulary").rename(tmp_path / "vocabulary")
  words = (f"{number}\n" for number in range(256))
  (folder / "vocab.txt").write_text("".join(words))
  with pytest.raises(errors.UserError, match="no vocabulary beside"):
    transformer_xl.load(folder)


def test_a_run_without_evaluations_says_so(folder):
  read = huggingface_hub.ModelCard.load(folder / "README.md")
  assert "It was not evaluated." in read.text
  assert read.data.library_name == "transformer_xl"
  assert not (folder / "evaluation_cards.jsonl").exists()


@pytest.mark.parametrize(
  "entry", [5, {"model": {"dtype": 3}}, {"model": {"colour": 1}}, {"score": 1}]
)
def test_a_damaged_entry_is_one_line(folder, entry):
  path = folder / "config.json"
  fields = json.loads(path.read_text()) | {"transformer_xl": entry}
  path.write_text(json.dumps(fields))
  with pytest.raises(errors.UserError, match=r"config\.json") as caught:
    transformer_xl.load(folder)
  assert "\n" not in str(caught.value)


@pytest.mark.rest
def test_a_model_in_bfloat16_stays_in_it(tmp_path):
  run, folder = exported(tmp_path, **{"model.dtype": "bfloat16"})
  (one,), (other,) = (
    transformer_xl.load(path).score(["abc def"]) for path in (run, folder)
  )
  assert one == other
  states = transformer_xl.load(folder).hidden_states("abc").states
  assert states.dtype == np.float32


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("final_norm", True, r"2 \(transformer.final_norm.weight, .*\) missing"),
    ("norm", "rms", "none missing, 4 .* unused"),
    ("feed_forward", "geglu", "none missing, 4 .* unused"),
    ("qk_norm", True, "4 .* missing, none unused"),
    ("num_kv_heads", 1, "qkv_net.weight has the shape"),
    ("num_kv_heads", 3, "must divide"),
    ("norm", "batch", "model.norm"),
  ],
)
def test_options_that_contradict_the_tensors_are_one_line(
  folder, name, value, message
):
  path = folder / "config.json"
  fields = json.loads(path.read_text())
  fields["transformer_xl"]["model"][name] = value
  path.write_text(json.dumps(fields))
  with pytest.raises(errors.UserError, match=message) as caught:
    transformer_xl.load(folder)
  assert "\n" not in str(caught.value)
