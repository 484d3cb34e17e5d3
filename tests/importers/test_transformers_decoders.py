"""Models of today beside transformers: import, export, generation."""

import dataclasses

import numpy as np
import pytest

import transformer_xl
from tests.importers import decoders_by_hand
from tests.importers import in_pytorch
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

torch, transformers = in_pytorch.torch, in_pytorch.transformers
pytestmark = pytest.mark.filterwarnings("default")

# Layers, width, heads, heads of keys and values.
SIZES = {"small": (2, 24, 4, 2), "wide": (3, 96, 6, 3), "deep": (6, 48, 4, 1)}
LENGTH = 160
# Number formats of the file; both sides compute in float32.
FORMATS = ("float32", "float16", "bfloat16")
LIMIT = 1e-4  # Of a log-probability.


def fields(name, size):
  layers, width, heads, of_keys = SIZES[size]
  own = decoders_by_hand.KINDS[name]
  return decoders_by_hand.SHAPE | {
    **{"num_hidden_layers": layers, "hidden_size": width},
    **{"num_attention_heads": heads, "intermediate_size": 2 * width},
    **{"num_key_value_heads": of_keys, "max_position_embeddings": 256},
    **own,
  }


def written(name, size, folder, dtype="float32"):
  """A random model of theirs, from the folder that it writes."""
  config = transformers.AutoConfig.for_model(**fields(name, size))
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.ndim == 1:
        parameter.add_(0.3 * torch.randn_like(parameter))
      else:  # Drawn so narrow that all tokens would be as likely.
        parameter.mul_(5)
  model.to(getattr(torch, dtype)).save_pretrained(folder)
  decoders_by_hand.write_tokenizer(folder)
  # Read again: `to` has rounded its frequencies, which no file has.
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  )


def theirs(model, tokens):
  with torch.no_grad():
    logits = model(torch.tensor(tokens)).logits.float()
  return torch.log_softmax(logits, dim=-1).numpy()


def ours(model, tokens, stops=()):
  state = model.init_state(len(tokens))
  parts = []
  for part in np.split(tokens, stops, axis=1):
    state, found = model.step(state, part)
    parts.append(np.asarray(found))
  return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_an_import_equals_transformers(name, size, dtype, tmp_path):
  model = written(name, size, tmp_path, dtype)
  tokens = np.random.default_rng(0).integers(0, 257, (3, LENGTH))
  expected = theirs(model, tokens)
  assert expected.std() > 0.2  # There is something to be equal in.
  mine = transformer_xl.load(tmp_path)
  for stops in ((), (64, 100, 101, 102)):
    found = ours(mine, tokens, stops)
    np.testing.assert_allclose(found, expected, atol=LIMIT, rtol=0)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_bfloat16_rounds_about_as_theirs(name, tmp_path):
  exact = written(name, "wide", tmp_path, "bfloat16")
  rounded = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, dtype=torch.bfloat16
  )
  found = import_run.read(import_run.Request("huggingface", str(tmp_path)))
  model = dataclasses.replace(found.config.model, dtype="bfloat16")
  tokens = np.random.default_rng(0).integers(0, 257, (3, LENGTH))
  expected = theirs(exact, tokens)
  (mem_len,) = found.config.eval.mem_len
  state = network.empty_state(
    model, batch_size=3, mem_len=mem_len, step_len=LENGTH
  )
  settings = mixer.Settings(same_length=found.config.eval.same_length)
  log_probs, _ = network.Network(model, settings).apply(
    {"params": found.params}, tokens, state, method="log_probs"
  )
  own = np.asarray(log_probs) - expected
  other = theirs(rounded.eval(), tokens) - expected
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
  model = written(name, "wide", tmp_path)
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


@pytest.mark.parametrize("name", decoders_by_hand.KINDS)
def test_transformers_loads_an_export_without_our_code(name, tmp_path):
  written(name, "small", tmp_path / "source")
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
  tokens = np.random.default_rng(2).integers(0, 257, (2, LENGTH))
  mine = transformer_xl.load(workdir)
  found = theirs(loaded.eval(), tokens)
  np.testing.assert_allclose(found, ours(mine, tokens), atol=LIMIT, rtol=0)
  tokenizer = transformers.AutoTokenizer.from_pretrained(target)
  text = "Größe, 1 2 3\n"
  said = tokenizer.apply_chat_template(
    [{"role": "user", "content": text.strip()}], tokenize=False
  )
  assert said == text
  ids = tokenizer.encode(text, add_special_tokens=False)
  assert ids == mine.vocabulary.encode(text).tolist()
