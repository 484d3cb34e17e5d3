"""Cards of an evaluation: one for each setting, with all that it depends on."""

import dataclasses
import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import shared_programs
from tests import tiny
from tests.evaluation import splits
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.model import network
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_state
from transformer_xl.workdir import trained_model

CARD = {  # The contract, then what comes on top of it.
  *("dataset", "dataset_sha256"),
  *("split", "num_tokens", "nll", "perplexity", "bits_per_character"),
  *("segment_len", "mem_len", "clamp_len", "same_length", "memory_start"),
  *("batch_size", "dtype", "checkpoint_step", "num_parameters"),
  *("seconds", "tokens_per_second"),
  *("bits_per_byte", "word_perplexity", "warmup_len", "parameters"),
  *("context_len", "temperature", "initialised_from", "encoding_fields"),
  *("layers", "mixer_fields", "reset_at_documents", "same_length_window"),
  *("encoding", "pre_norm", "layer_norm_epsilon", "targets", "extensions"),
  *("unknown_share", "scale_embeddings"),
}


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  """Most cards are compared with a score by the same settings."""
  with shared_programs.sharing():
    yield


@pytest.fixture(scope="module")
def workdir(data_dir, tmp_path_factory):
  """A folder with three checkpoints, the second of which is the best."""
  folder = str(tmp_path_factory.mktemp("run"))
  config = corpus.config(data_dir, **{"train.segments_per_call": 1})
  checkpoints = checkpoint.Checkpoints(folder, config.checkpoint)
  for step, nll in ((1, 3.0), (2, 2.0), (3, 2.5)):
    state = train_state(config, step)
    memory = network.empty_state(
      config.model, batch_size=1, mem_len=1, step_len=1
    )
    run = run_state.RunState(state, memory, validation_loss=nll)
    checkpoints.save(run)
  checkpoints.close()
  return folder


def train_state(config, step):
  params = tiny.params(config.model, seed=step)
  average = tiny.params(config.model, seed=10 + step)
  return run_state.TrainState(jnp.int32(step), params, (), average)


def test_a_card_for_each_temperature_and_memory(data_dir, workdir, caplog):
  caplog.set_level("INFO")
  config = corpus.config(
    data_dir,
    **{"eval.mem_len": (0, 8), "eval.temperature": (1.0, 1.5)},
    **{"eval.split": "valid"},
  )
  cards = evaluate.run(config, workdir)
  settings = [(card["mem_len"], card["temperature"]) for card in cards]
  assert settings == [(0, 1.0), (0, 1.5), (8, 1.0), (8, 1.5)]
  assert len({card["nll"] for card in cards}) == 4
  best = min(cards, key=lambda card: card["nll"])
  assert (
    f"lowest perplexity of 4: --config.eval.mem_len={best['mem_len']} "
    f"--config.eval.temperature={best['temperature']}"
  ) in caplog.text
  hot = load.replaced(config, {"eval.temperature": (1.5,)})
  alone = splits.score(hot, mem_len=8, seed=3)
  assert cards[3]["nll"] == alone.nll / alone.num_tokens


def test_a_run_writes_a_card_for_each_memory_length(data_dir, workdir):
  config = corpus.config(
    data_dir, **{"eval.mem_len": (0, 8), "eval.clamp_len": 6}
  )
  cards = evaluate.run(config, workdir)
  with open(f"{workdir}/results/eval_test.json", encoding="utf-8") as file:
    assert json.load(file) == {"cards": cards}
  assert all(set(card) == CARD for card in cards)
  assert [card["mem_len"] for card in cards] == [0, 8]
  card = cards[1]
  alone = splits.score(config, mem_len=8, seed=3)
  assert card["nll"] == alone.nll / 149
  assert card["perplexity"] == pytest.approx(np.exp(card["nll"]))
  assert card["bits_per_character"] == pytest.approx(card["nll"] / np.log(2))
  assert card["bits_per_byte"] == pytest.approx(
    card["nll"] * 149 / np.log(2) / 150
  )
  assert card["checkpoint_step"] == 3
  assert card["split"] == "test"
  assert card["clamp_len"] == 6
  sizes = map(np.size, jax.tree.leaves(tiny.params(config.model)))
  assert card["num_parameters"] == sum(sizes)


def test_a_memory_longer_than_the_split_is_cut_before_anything_is_computed(
  data_dir, workdir, caplog
):
  """It would not fit any machine."""
  lengths = (150, 10**9, 2 * 10**9)
  config = corpus.config(data_dir, **{"eval.mem_len": lengths})
  (card,) = evaluate.run(config, workdir)
  assert card["mem_len"] == 149
  assert (
    "eval.mem_len=2000000000 is longer than the test split, which has 149 "
    "tokens before the last one; it is evaluated with 149."
  ) in caplog.text
  assert card["nll"] == splits.score(config, mem_len=149, seed=3).nll / 149


def test_a_cache_longer_than_the_split_is_cut(data_dir, workdir, caplog):
  sizes = {"eval.cache.size": 10**9, "eval.cache.share": (0.2,)}
  config = corpus.config(data_dir, **{"eval.mem_len": (8,)}, **sizes)
  *_, card = evaluate.run(config, workdir)
  assert card["cache"]["size"] == 149
  assert "eval.cache.size=1000000000 is longer than the test s" in caplog.text


def test_a_memory_of_zeros_is_as_long_as_asked(data_dir, workdir):
  """All of them are attended to, however short the split is."""
  options = {"model.memory_start": "zeros", "eval.mem_len": (149, 300)}
  config = corpus.config(data_dir, **options)
  short, long = evaluate.run(config, workdir)
  assert (short["mem_len"], long["mem_len"]) == (149, 300)
  assert abs(short["nll"] - long["nll"]) > 1e-3


@pytest.mark.some(1)
@pytest.mark.parametrize("context_len", [0, 5])
def test_without_memory_same_length_has_no_effect_and_the_card_says_so(
  data_dir, workdir, context_len
):
  """Tokens see their whole segment, and the context that is read with it."""
  mem_lens = (0,) if context_len else (0, 8)
  plain = corpus.config(
    data_dir, **{"eval.mem_len": mem_lens, "eval.context_len": context_len}
  )
  limited = load.replaced(plain, {"eval.same_length": True})
  expected = evaluate.run(plain, workdir)
  cards = evaluate.run(limited, workdir)
  assert cards[0]["nll"] == expected[0]["nll"]
  assert cards[0]["same_length"] is False
  for card, other in zip(cards[1:], expected[1:], strict=True):
    assert card["nll"] != other["nll"]
    assert card["same_length"] is True


@pytest.mark.parametrize(
  ("which", "parameters", "seed"),
  [("best", "raw", 2), ("2", "ema", 12)],
)
def test_the_checkpoint_and_the_average_are_chosen_by_name(
  data_dir, workdir, which, parameters, seed
):
  config = corpus.config(
    data_dir, **{"eval.checkpoint": which, "eval.parameters": parameters}
  )
  (card,) = evaluate.run(config, workdir)
  assert card["checkpoint_step"] == 2
  assert card["parameters"] == parameters
  assert card["nll"] == splits.score(config, mem_len=8, seed=seed).nll / 149


def test_a_card_names_the_text_that_was_read(tmp_path):
  """Two texts with the same vocabulary; each call leaves its card behind."""
  data_dir, workdir = str(tmp_path / "data"), str(tmp_path / "run")
  for name in (corpus.NAME, "other"):
    corpus.write(data_dir, name=name)
  other = tmp_path / "data" / "other"
  ids = np.load(other / "test.npy")
  np.save(other / "test.npy", np.where(ids == 1, 2, ids).astype(ids.dtype))
  digest = hashlib.sha256((other / "test.npy").read_bytes()).hexdigest()
  with corpus.changed_meta(other) as meta:
    meta["splits"]["test"]["sha256"] = digest
  configs = [
    corpus.config(data_dir, **{"data.name": name})
    for name in (corpus.NAME, "other")
  ]
  params = tiny.params(configs[0].model)
  params_writer.save(workdir, params, step=1)
  cards = [evaluate.run(c, workdir)[0] for c in configs]
  assert [card["dataset"] for card in cards] == [corpus.NAME, "other"]
  assert cards[1]["dataset_sha256"] == digest != cards[0]["dataset_sha256"]
  results = tmp_path / "run" / "results"
  lines = (results / "cards.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == cards
  last = json.loads((results / "eval_test.json").read_text())
  assert last == {"cards": cards[1:]}


def make_card(config, nll, *, mem_len=8, num_characters=400, **others):
  """The card of a score over 100 tokens, for a model with one parameter."""
  model = trained_model.TrainedModel(config, None, {"one": np.zeros(1)}, step=7)
  sizes = {"num_bytes": 400, "num_characters": num_characters, "num_words": 80}
  sizes |= others
  file = token_file.TokenFile(np.arange(2), np.array([0]), "5ad1", sizes)
  score = evaluator.Score(nll=nll, num_tokens=100, seconds=1.0)
  return cards_lib.make(model, score, file, mem_len)


COMPRESSING = kinds.compressing()


@pytest.mark.parametrize(
  ("shared", "name", "value"),
  [
    *(
      ({}, name, value)
      for name, value in {
        "model.layers": ("attention:4", "attention"),
        "model.same_length_window": "mem_len",
        "model.memory_start": "zeros",
        "model.dtype": "bfloat16",
        "data.reset_at_documents": True,
        "eval.split": "valid",
        "eval.batch_size": 3,
        "eval.segment_len": 7,
        "eval.clamp_len": 5,
        "eval.same_length": True,
        "eval.warmup_len": 5,
        "eval.temperature": (1.1,),
        "eval.parameters": "ema",
      }.items()
    ),
    ({"eval.mem_len": (0,)}, "eval.context_len", 5),
    *(
      (field.model, field.path, field.values[0])
      for field in kinds.all_own_fields()
    ),
  ],
)
def test_evaluations_that_differ_have_cards_that_differ(
  data_dir, shared, name, value
):
  config = corpus.config(data_dir, **shared)
  mem_len = config.eval.mem_len[0]
  before = make_card(config, 100.0, mem_len=mem_len)
  changed = load.replaced(config, {name: value})
  assert make_card(changed, 100.0, mem_len=mem_len) != before


def test_every_setting_of_evaluation_is_on_the_card():
  """A new field has to be stated, unless no loss depends on it."""
  same_loss = {"memory"}
  elsewhere = {"checkpoint": "checkpoint_step"}
  adapted = {"dynamic", "cache"}  # Their cards state these groups.
  fields = {field.name for field in dataclasses.fields(schema.EvalConfig)}
  stated = {elsewhere.get(name, name) for name in fields - same_loss - adapted}
  assert stated <= CARD


def word_data(folder):
  """The tiny dataset, as if its symbols were words."""
  data_dir = corpus.write(folder)
  with corpus.changed_meta(folder / corpus.NAME) as meta:
    meta["unit"] = "word"
  return data_dir


def test_bytes_of_a_text_with_longer_characters_have_bits_per_character(
  tmp_path,
):
  data_dir = corpus.write(tmp_path)
  found = []
  for dataset in ("text", "enwik8"):
    with corpus.changed_meta(tmp_path / corpus.NAME) as meta:
      meta |= {"unit": "byte", "dataset": dataset}
    card = make_card(corpus.config(data_dir), 200.0, num_characters=160)
    assert card["bits_per_byte"] == pytest.approx(0.5 / np.log(2))
    found.append(card["bits_per_character"] * np.log(2))
  # Two nats a byte. Results on enwik8 are published per byte.
  assert found == pytest.approx([2 * 400 / 160, 2])


@pytest.mark.parametrize(("unknown", "is_warned"), [(20, False), (60, True)])
def test_the_share_of_unknown_tokens_is_on_the_card(
  tmp_path, workdir, caplog, unknown, is_warned
):
  data_dir = corpus.write(tmp_path)
  with corpus.changed_meta(tmp_path / corpus.NAME) as meta:
    meta["splits"]["test"]["num_unknown"] = unknown
  lengths = {"eval.mem_len": (0, 8)}
  cards = evaluate.run(corpus.config(data_dir, **lengths), workdir)
  assert [card["unknown_share"] for card in cards] == [unknown / 150] * 2
  warnings = [line for line in caplog.messages if "are unknown to" in line]
  assert len(warnings) == is_warned
  if is_warned:
    assert "40.0% of the tokens of the test split are unknown" in warnings[0]


def test_words_have_no_bits_per_character(tmp_path):
  values = make_card(corpus.config(word_data(tmp_path)), 200.0)
  assert values["bits_per_character"] is None
  assert values["bits_per_byte"] == pytest.approx(0.5 / np.log(2))
  assert values["word_perplexity"] == pytest.approx(np.exp(2.5))
  assert values["tokens_per_second"] == 100


@pytest.mark.parametrize(
  ("num_characters", "num_words", "num_lines", "is_known"),
  [
    (600, 110, 10, True),  # English.
    (1100, 130, 30, False),  # Python.
    (400, 5, 4, False),  # Chinese, a line at a time.
  ],
)
def test_word_perplexity_is_of_words_alone(
  tmp_path, num_characters, num_words, num_lines, is_known
):
  values = make_card(
    corpus.config(word_data(tmp_path)),
    200.0,
    num_characters=num_characters,
    num_words=num_words,
    num_lines=num_lines,
  )
  expected = pytest.approx(np.exp(200.0 / num_words)) if is_known else None
  assert values["word_perplexity"] == expected


def test_what_is_not_finite_is_null_and_printed(data_dir, caplog):
  caplog.set_level("INFO")
  huge = make_card(corpus.config(data_dir), 1e5)  # 1000 nats a token.
  assert (huge["nll"], huge["perplexity"]) == (1000.0, None)
  cards_lib.log(huge)
  assert "test: diverged" in caplog.text
  lost = make_card(corpus.config(data_dir), float("nan"))
  assert (lost["nll"], lost["word_perplexity"]) == (None, None)
  json.dumps([huge, lost], allow_nan=False)


def test_a_card_prints_what_is_unusual(data_dir, caplog):
  caplog.set_level("INFO")
  unusual = {
    **{"eval.parameters": "ema", "eval.warmup_len": 3, "train.ema_decay": 0.9},
    **{"eval.temperature": (1.08,), "eval.same_length": True},
  }
  layers = (kinds.recurrent(), COMPRESSING)
  own = kinds.own_fields(COMPRESSING)
  unusual |= kinds.model(*layers)
  parts = ("parameters ema", "warmup_len 3", "temperature 1.08", "window mem_")
  parts += (f"memory 8 in layers {','.join(layers)} (",)
  parts += tuple(
    f"{field.partition('.')[2]} {value}" for field, value in own.items()
  )
  config = corpus.config(data_dir)
  cards_lib.log(make_card(config, 100.0))
  assert not any(part in caplog.text for part in parts)
  usual = ("perplexity 2.718", "bits per character 1.4427")
  usual += ("segment 8", "memory 8", "step 7")
  assert all(part in caplog.text for part in usual)
  cards_lib.log(make_card(load.replaced(config, unusual), 100.0))
  assert all(part in caplog.text for part in parts)


def test_a_folder_without_checkpoints_is_one_line(data_dir, tmp_path):
  with pytest.raises(errors.UserError, match="no checkpoints") as caught:
    evaluate.run(corpus.config(data_dir), str(tmp_path))
  assert "\n" not in str(caught.value)
  assert list(tmp_path.iterdir()) == []


def test_a_warm_up_longer_than_the_split_is_cut(data_dir, workdir, caplog):
  """Nothing stands before the text; zeros would be read for hours."""
  lengths = {"eval.mem_len": (8,), "eval.warmup_len": 10**9}
  (card,) = evaluate.run(corpus.config(data_dir, **lengths), workdir)
  assert card["warmup_len"] == 149
  assert "eval.warmup_len=1000000000 is longer than the te" in caplog.text
