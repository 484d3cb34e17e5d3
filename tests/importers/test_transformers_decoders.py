"""Models of today beside transformers: import, export, generation."""

import copy
import dataclasses

import numpy as np
import pytest

import transformer_xl
from tests.importers import beside_transformers
from tests.importers import decoders_by_hand
from tests.importers import in_pytorch
from transformer_xl import errors
from transformer_xl.importers import decoders
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

torch, transformers = in_pytorch.torch, in_pytorch.transformers
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("dtype", beside_transformers.FORMATS)
@pytest.mark.parametrize("size", beside_transformers.SIZES)
@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_an_import_equals_transformers(name, size, dtype, tmp_path):
  model = beside_transformers.written(name, size, tmp_path, dtype)
  tokens = beside_transformers.tokens_of(3)
  expected = beside_transformers.theirs(model, tokens)
  assert expected.std() > 0.2  # There is something to be equal in.
  mine = transformer_xl.load(tmp_path)
  for stops in beside_transformers.STOPS:
    found = beside_transformers.ours(mine, tokens, stops)
    np.testing.assert_allclose(
      found, expected, atol=beside_transformers.LIMIT, rtol=0
    )


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_bfloat16_rounds_about_as_theirs(name, tmp_path):
  exact = beside_transformers.written(name, "wide", tmp_path, "bfloat16")
  rounded = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, dtype=torch.bfloat16
  )
  found = import_run.read(import_run.Request("huggingface", str(tmp_path)))
  model = dataclasses.replace(found.config.model, dtype="bfloat16")
  tokens = beside_transformers.tokens_of(3)
  expected = beside_transformers.theirs(exact, tokens)
  (mem_len,) = found.config.eval.mem_len
  state = network.empty_state(
    model, batch_size=3, mem_len=mem_len, step_len=beside_transformers.LENGTH
  )
  settings = mixer.Settings(same_length=found.config.eval.same_length)
  log_probs, _ = network.Network(model, settings).apply(
    {"params": found.params}, tokens, state, method="log_probs"
  )
  own = np.asarray(log_probs) - expected
  other = beside_transformers.theirs(rounded.eval(), tokens) - expected
  print(
    "RMS",
    name,
    np.sqrt(np.mean(own**2)),
    np.sqrt(np.mean(other**2)),
    np.abs(own).max(),
    np.abs(other).max(),
  )
  # Both round to 8 bits, in other places and orders.
  assert np.sqrt(np.mean(own**2)) > 1e-3
  assert np.sqrt(np.mean(own**2)) < 2 * np.sqrt(np.mean(other**2))
  assert np.abs(own).max() < 3 * np.abs(other).max()


@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_greedy_text_is_theirs_in_a_padded_batch_too(name, tmp_path):
  model = beside_transformers.written(name, "wide", tmp_path)
  mine = transformer_xl.load(tmp_path)
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
  tokenizer.pad_token = "<|endoftext|>"
  tokenizer.padding_side = "left"
  prompts = ["The cat", "A longer text, of other words: "]
  batch = tokenizer(prompts, return_tensors="pt", padding=True)
  batch.pop("token_type_ids", None)
  with torch.no_grad():
    texts = model.generate(
      **batch,
      max_new_tokens=64,
      do_sample=False,
      # Else it would be left out until then.
      eos_token_id=None,
      pad_token_id=tokenizer.pad_token_id,
    )
  length = batch["input_ids"].shape[1]
  for prompt, expected in zip(prompts, texts[:, length:].tolist(), strict=True):
    found = mine.generate(prompt, num_tokens=64, temperature=0)
    assert found.tokens.tolist() == expected


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
  "said",
  [
    {},
    {"sliding_window": 5},
    {"sliding_window": None},
    {"use_sliding_window": True},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 9},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
  ],
)
def test_the_window_of_a_file_is_theirs(kind, said):
  fields = {**decoders_by_hand.SHAPE, "model_type": kind, **said}
  config = transformers.AutoConfig.for_model(**fields)
  window = getattr(config, "sliding_window", None)
  if kind == "llama":
    window = None  # Which its layers do not read.
  kinds = {*(getattr(config, "layer_types", None) or ["sliding_attention"])}
  if window is not None and len(kinds) > 1:
    with pytest.raises(errors.UserError, match="only one kind of layer"):
      decoders.lengths(fields, "config.json")
    return
  found = decoders.lengths(fields, "config.json")
  if window is None or kinds == {"full_attention"}:
    assert not found.same_length
  else:
    assert found.same_length
    assert found.mem_len == window


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_a_file_leaves_out_is_what_they_take(kind):
  fields = {**decoders_by_hand.SHAPE, "model_type": kind}
  fields |= {"hidden_size": 512, "num_attention_heads": 64}
  del fields["num_key_value_heads"], fields["rms_norm_eps"]
  config = transformers.AutoConfig.for_model(**fields)
  found = decoders.model(fields, "config.json")
  assert found["num_kv_heads"] == config.num_key_value_heads
  assert found["layer_norm_epsilon"] == config.rms_norm_eps
  usual = config.hidden_size // config.num_attention_heads
  assert found["head_dim"] == getattr(config, "head_dim", usual)


_LINEAR = {"rope_type": "linear", "factor": 4.0}
_LENGTH = "original_max_position_embeddings"
_LLAMA_3 = decoders_by_hand.LLAMA_3
_NO_LENGTH = {name: _LLAMA_3[name] for name in _LLAMA_3 if name != _LENGTH}


@pytest.mark.parametrize(
  "said",
  [
    {"rope_parameters": _LINEAR | {"rope_theta": 500.0}, "rope_theta": 5.0},
    {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": _LINEAR},
    {
      **{"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": _LINEAR},
      "rope_theta": 50.0,
    },
    {"rope_scaling": _LLAMA_3},
    {"rope_scaling": _LLAMA_3, _LENGTH: 16},
    {"rope_parameters": _NO_LENGTH, _LENGTH: 16},
    {"rope_parameters": _NO_LENGTH},
  ],
)
def test_the_positions_of_a_file_are_theirs(said):
  fields = {**decoders_by_hand.SHAPE, "model_type": "llama", **said}
  config = transformers.AutoConfig.for_model(**copy.deepcopy(fields))
  config.standardize_rope_params()  # As their layers begin.
  theirs = config.rope_parameters
  ours = decoders.model(fields, "config.json")["rope"]
  found = {"rope_theta": ours["base"]}
  if theirs["rope_type"] == "linear":
    found["factor"] = 1 / ours["position_scale"]
  else:
    found[_LENGTH] = ours["original_len"]
  assert found == {name: theirs[name] for name in found}


@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_transformers_loads_an_export_without_our_code(name, tmp_path):
  beside_transformers.written(name, "small", tmp_path / "source")
  template = "{% for one in messages %}{{ one.content }}\n{% endfor %}"
  (tmp_path / "source/chat_template.jinja").write_text(template)
  workdir = str(tmp_path / "run")
  import_run.make(
    import_run.Request("huggingface", str(tmp_path / "source")), workdir
  )
  target = tmp_path / "export"
  export_run.export(workdir, str(target))
  loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
    target, output_loading_info=True
  )
  assert not any(report[key] for key in ("missing_keys", "unexpected_keys"))
  end = transformer_xl.load(workdir).vocabulary.encode("<|endoftext|>")
  assert [loaded.generation_config.eos_token_id] == end.tolist()
  tokens = beside_transformers.tokens_of(2)
  mine = transformer_xl.load(workdir)
  expected = beside_transformers.theirs(loaded.eval(), tokens)
  found = beside_transformers.ours(mine, tokens)
  np.testing.assert_allclose(
    found, expected, atol=beside_transformers.LIMIT, rtol=0
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(target)
  text = "Größe, 1 2 3\n"
  said = tokenizer.apply_chat_template(
    [{"role": "user", "content": text.strip()}], tokenize=False
  )
  assert said == text
  ids = tokenizer.encode(text, add_special_tokens=False)
  assert ids == mine.vocabulary.encode(text).tolist()


def test_a_width_that_the_heads_do_not_divide_is_no_llama_there(tmp_path):
  """They refuse it, and take the same as a Mistral without a window."""
  fields = decoders_by_hand.SHAPE | decoders_by_hand.KINDS["mistral, no window"]
  fields |= {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6}
  source = tmp_path / "source"
  decoders_by_hand.write(source, fields, decoders_by_hand.tensors(fields))
  workdir = str(tmp_path / "run")
  import_run.make(import_run.Request("huggingface", str(source)), workdir)
  target = tmp_path / "export"
  export_run.export(workdir, str(target))
  loaded = transformers.AutoModelForCausalLM.from_pretrained(target).eval()
  tokens = beside_transformers.tokens_of(2)[:, :48]
  expected = beside_transformers.theirs(loaded, tokens)
  for model in (workdir, target):
    found = beside_transformers.ours(transformer_xl.load(model), tokens)
    np.testing.assert_allclose(
      found, expected, atol=beside_transformers.LIMIT, rtol=0
    )
