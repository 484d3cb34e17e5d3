"""Models of today: what is imported computes what their equations say."""

import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from tokenizers import processors

import transformer_xl
from tests import comparison
from tests.importers import decoders_by_hand
from tests.importers import stored_files
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data_prep import preparation
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.importers import vocabulary
from transformer_xl.workdir import run_record

TOKENS = np.random.default_rng(1).integers(0, 257, 40)
# Two lengths alone, since each is a program.
PARTS = np.split(TOKENS, [13, 26, 27])


def log_probabilities(model, parts=PARTS):
  """Those of the next token after each of TOKENS, read in parts."""
  state = model.init_state()
  result = []
  for part in parts:
    state, found = model.step(state, [part])
    result.append(np.asarray(found[0]))
  return np.concatenate(result)


@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_segments_of_an_import_are_one_pass_of_the_equations(name, tmp_path):
  fields, weights = decoders_by_hand.written(tmp_path, name)
  model = transformer_xl.load(tmp_path)
  expected = decoders_by_hand.log_probabilities(fields, weights, TOKENS)
  found = log_probabilities(model)
  comparison.assert_close(found, expected, roundings=100)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_in_a_file_are_read_exactly(dtype, tmp_path):
  fields = decoders_by_hand.SHAPE | decoders_by_hand.KINDS["qwen2"]
  kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
  weights = {
    name: array.astype(kind)
    for name, array in decoders_by_hand.tensors(fields).items()
  }
  decoders_by_hand.write(tmp_path, fields, weights)
  params = transformer_xl.load(tmp_path).params
  stored = weights["model.layers.1.mlp.up_proj.weight"]
  kernel = params["layers"]["0"]["feed_forward"]["in_kernel"][1]
  np.testing.assert_array_equal(kernel, stored.astype(np.float32).T)


def test_weights_over_several_files_and_a_run_of_them_are_the_same(tmp_path):
  source = tmp_path / "source"
  _, weights = decoders_by_hand.written(source, "qwen3")
  whole = transformer_xl.load(source)
  stored_files.spread(source / "model.safetensors")
  workdir = str(tmp_path / "run")
  report = import_run.make(
    import_run.Request("huggingface", str(source)), workdir
  )
  assert report["num_tensors"] == len(weights)
  assert sorted(report["files"]) == [
    *("a.safetensors", "b.safetensors", "model.safetensors.index.json")
  ]
  run = transformer_xl.load(workdir)
  np.testing.assert_array_equal(
    log_probabilities(run), log_probabilities(whole)
  )
  assert run.vocabulary.size == decoders_by_hand.VOCAB
  text = "Größe <|endoftext|>\n"
  assert run.vocabulary.decode(run.vocabulary.encode(text)) == text
  assert run.score([text])[0].num_tokens > 0


@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_an_export_is_of_the_type_that_was_imported(name, tmp_path):
  source = tmp_path / "source"
  fields, weights = decoders_by_hand.written(source, name)
  workdir = str(tmp_path / "run")
  import_run.make(import_run.Request("huggingface", str(source)), workdir)
  target = tmp_path / "export"
  export_run.export(workdir, str(target))
  written = json.loads((target / "config.json").read_text())
  model_type = fields["model_type"]
  if model_type == "mistral" and not fields["sliding_window"]:
    model_type = "llama"  # Which is the same without a window.
  assert written["model_type"] == model_type
  assert not list(target.glob("*.py"))
  card = (target / "README.md").read_text()
  assert f"`{model_type}`" in card
  assert "trust_remote_code" not in card
  stored = safetensors.numpy.load_file(target / "model.safetensors")
  assert stored.keys() == weights.keys()
  for tensor, values in weights.items():
    np.testing.assert_array_equal(stored[tensor], values)
  expected = decoders_by_hand.log_probabilities(
    fields | {"rope_parameters": written["rope_parameters"]}, weights, TOKENS
  )
  found = log_probabilities(transformer_xl.load(target))
  comparison.assert_close(found, expected, roundings=100)


@pytest.mark.parametrize(
  ("change", "text"),
  [
    ({"hidden_act": "gelu"}, 'hidden_act="gelu", and only "silu"'),
    ({"mlp_bias": True}, "mlp_bias=true, and only false"),
    ({"attention_bias": True}, "attention_bias=true, and only false can"),
    ({"rope_scaling": {"type": "yarn"}}, 'rope_type="yarn", and only default'),
    (
      {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
      },
      'rope_type="yarn", and only default',
    ),
    (
      {
        **{"model_type": "mistral", "sliding_window": 4},
        "layer_types": ["sliding_attention", "full_attention"],
      },
      r"layer_types=\[.*\], and only one kind of layer",
    ),
    (
      {
        **{"model_type": "qwen2", "use_sliding_window": True},
        **{"sliding_window": 4, "max_window_layers": 1},
      },
      r"layer_types=\[.*\], and only one kind of layer",
    ),
    ({"rms_norm_eps": None}, "is damaged"),
    ({"num_attention_heads": 0}, "is damaged"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "is damaged"),
    ({"max_position_embeddings": "x"}, "is damaged"),
    ({"model_type": "mistral", "sliding_window": "8"}, "is damaged"),
    ({"model_type": "mistral", "layer_types": [["a"]]}, "is damaged"),
    ({"model_type": "mamba"}, "of the type 'mamba'; only llama, mistral"),
    ({"hidden_size": 32}, "has the shape .* but the rest of the source"),
  ],
)
def test_what_the_block_has_not_is_refused_by_name(change, text, tmp_path):
  fields, _ = decoders_by_hand.written(tmp_path, "llama")
  path = pathlib.Path(tmp_path, "config.json")
  path.write_text(json.dumps(fields | change))
  with pytest.raises(errors.UserError, match=text):
    transformer_xl.load(tmp_path)


@pytest.mark.parametrize("same_length", [True, False])
def test_a_model_without_memory_has_no_window(same_length, tmp_path):
  """Written as one, a token would see itself alone or nothing."""
  source = tmp_path / "source"
  decoders_by_hand.written(source, "mistral")
  workdir = str(tmp_path / "run")
  import_run.make(import_run.Request("huggingface", str(source)), workdir)
  saved = load.from_config_dict(load.saved(workdir))
  values = {
    "score.mem_len": 0,
    "score.segment_len": 32,
    "eval.same_length": same_length,
  }
  target = tmp_path / "export"
  export_run.export(workdir, str(target), load.replaced(saved, values))
  written = json.loads((target / "config.json").read_text())
  assert written["model_type"] == "llama"
  assert "sliding_window" not in written
  assert written["max_position_embeddings"] == 32


TEMPLATE = (
  "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
  "{{ eos_token }}{% endfor %}"
)


def with_special_tokens(folder):
  """A tokenizer that puts one in front of a text, and says what they are."""
  path = str(folder / "tokenizer.json")
  tokenizer = tokenizers.Tokenizer.from_file(path)
  tokenizer.add_special_tokens(["<|begin_of_text|>", "<|im_end|>"])
  start = tokenizer.token_to_id("<|begin_of_text|>")
  tokenizer.post_processor = processors.TemplateProcessing(
    single="<|begin_of_text|> $A",
    special_tokens=[("<|begin_of_text|>", start)],
  )
  tokenizer.save(path)
  about = {
    "bos_token": {"content": "<|begin_of_text|>", "special": True},
    "eos_token": "<|im_end|>",
    "pad_token": None,
  }
  (folder / "tokenizer_config.json").write_text(json.dumps(about))
  return start, tokenizer.token_to_id("<|im_end|>")


def test_special_tokens_of_a_source_are_those_of_its_export(tmp_path):
  """Not the first that has a usual name, as <|endoftext|> has."""
  source = tmp_path / "source"
  decoders_by_hand.written(source, "llama")
  start, end = with_special_tokens(source)
  workdir = str(tmp_path / "run")
  import_run.make(import_run.Request("huggingface", str(source)), workdir)
  target = tmp_path / "export"
  export_run.export(workdir, str(target))
  written = json.loads((target / "config.json").read_text())
  assert written["bos_token_id"] == start
  assert written["eos_token_id"] == end
  about = json.loads((target / "tokenizer_config.json").read_text())
  assert about["bos_token"] == "<|begin_of_text|>"
  assert about["eos_token"] == about["pad_token"] == "<|im_end|>"


def test_a_text_is_read_behind_the_token_that_begins_one(tmp_path):
  decoders_by_hand.written(tmp_path, "llama")
  assert transformer_xl.load(tmp_path).config.score.prefix == "\n"
  start, _ = with_special_tokens(tmp_path)
  model = transformer_xl.load(tmp_path)
  text = "a word"
  ids = model.vocabulary.encode(text)
  found = log_probabilities(model, [np.array([start, *ids[:-1]])])
  expected = found[np.arange(len(ids)), ids].sum()
  assert model.score([text])[0].nll == pytest.approx(-expected, rel=1e-4)


@pytest.mark.parametrize(
  ("template", "start"),
  [("<s> $A", "<s>"), ("<s> $A </s>", "<s>"), ("$A </s>", ""), ("$A", "")],
)
@pytest.mark.parametrize("padding", [None, {"length": 6}])
def test_what_a_tokenizer_puts_behind_a_text_begins_none(
  template, start, padding, tmp_path
):
  decoders_by_hand.write_tokenizer(tmp_path)
  path = str(tmp_path / "tokenizer.json")
  tokenizer = tokenizers.Tokenizer.from_file(path)
  tokenizer.add_special_tokens(["<s>", "</s>"])
  tokenizer.post_processor = processors.TemplateProcessing(
    single=template,
    special_tokens=[
      (name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")
    ],
  )
  if padding:
    tokenizer.enable_padding(**padding)
  tokenizer.save(path)
  assert vocabulary.start_of_text(path) == start


@pytest.mark.parametrize("where", ["own file", "tokenizer_config.json"])
def test_a_chat_template_comes_back_from_a_run_on_text_of_its_vocabulary(
  where, tmp_path
):
  source = tmp_path / "source"
  decoders_by_hand.written(source, "llama")
  if where == "own file":
    (source / "chat_template.jinja").write_text(TEMPLATE)
  else:
    with_special_tokens(source)
    path = source / "tokenizer_config.json"
    named = [{"name": "default", "template": TEMPLATE}]
    about = json.loads(path.read_text()) | {"chat_template": named}
    path.write_text(json.dumps(about))
  workdir = tmp_path / "run"
  import_run.make(import_run.Request("huggingface", str(source)), str(workdir))
  (tmp_path / "text.txt").write_text("A few words of text.\n" * 30)
  preparation.prepare(
    dataset="text",
    source=str(tmp_path / "text.txt"),
    data_dir=str(tmp_path / "data"),
    name="words",
    vocabulary_file=str(workdir),
  )
  # Training keeps the vocabulary of its data.
  shutil.rmtree(workdir / "vocabulary")
  run_record.keep_vocabulary(str(tmp_path / "data/words"), str(workdir))
  export_run.export(str(workdir), str(tmp_path / "export"))
  about = json.loads((tmp_path / "export/tokenizer_config.json").read_text())
  assert about["chat_template"] == TEMPLATE
  ends = {"own file": "<|endoftext|>", "tokenizer_config.json": "<|im_end|>"}
  assert about["eos_token"] == ends[where]
