"""Decoders of today from their equations, in float64, by their names there.

A token at a time, and for each the keys that it sees: nothing of a memory or a
mask is here to be wrong.
"""

import json
import pathlib

import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

VOCAB = 270  # More rows than the tokenizer has symbols.
SHAPE = {
  **{"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 40},
  **{"num_hidden_layers": 2, "num_attention_heads": 4},
  **{"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
  **{"max_position_embeddings": 64},
}
LLAMA_3 = {
  **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0},
  **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
  "original_max_position_embeddings": 40,
}
KINDS = {
  "llama": {"model_type": "llama", "rope_theta": 10000.0},
  "llama, scaled by Llama 3": {
    **{"model_type": "llama", "head_dim": 8, "tie_word_embeddings": True},
    "rope_parameters": LLAMA_3,
  },
  "llama, scaled evenly, one head of keys": {
    **{"model_type": "llama", "num_key_value_heads": 1},
    **{
      "rope_theta": 10000.0,
      "rope_scaling": {"type": "linear", "factor": 4.0},
    },
  },
  "mistral": {"model_type": "mistral", "sliding_window": 7},
  "mistral, no window": {"model_type": "mistral", "sliding_window": None},
  "qwen2": {
    **{"model_type": "qwen2", "tie_word_embeddings": True},
    **{"sliding_window": 3, "use_sliding_window": False},
  },
  "qwen2, a window": {
    **{"model_type": "qwen2", "sliding_window": 7},
    **{"use_sliding_window": True, "max_window_layers": 0},
  },
  "qwen3": {"model_type": "qwen3", "head_dim": 10, "attention_bias": False},
}


def tensors(fields, seed=0):
  """Random tensors of a model, by name, in float32."""
  generator = np.random.default_rng(seed)
  width = fields["hidden_size"]
  heads = fields["num_attention_heads"]
  head_dim = fields.get("head_dim") or width // heads
  of_keys = fields["num_key_value_heads"] * head_dim
  inner = fields["intermediate_size"]
  kind = fields["model_type"]
  shapes = {"model.embed_tokens.weight": (VOCAB, width)}
  if not fields.get("tie_word_embeddings"):
    shapes["lm_head.weight"] = (VOCAB, width)
  for layer in range(fields["num_hidden_layers"]):
    own = f"model.layers.{layer}."
    for name, size in (("q", heads * head_dim), ("k", of_keys), ("v", of_keys)):
      shapes[f"{own}self_attn.{name}_proj.weight"] = (size, width)
      if kind == "qwen2":
        shapes[f"{own}self_attn.{name}_proj.bias"] = (size,)
      if kind == "qwen3" and name != "v":
        shapes[f"{own}self_attn.{name}_norm.weight"] = (head_dim,)
    shapes |= {
      f"{own}self_attn.o_proj.weight": (width, heads * head_dim),
      f"{own}mlp.up_proj.weight": (inner, width),
      f"{own}mlp.gate_proj.weight": (inner, width),
      f"{own}mlp.down_proj.weight": (width, inner),
      f"{own}input_layernorm.weight": (width,),
      f"{own}post_attention_layernorm.weight": (width,),
    }
  shapes["model.norm.weight"] = (width,)
  return {
    name: generator.normal(1.0 if "norm" in name else 0.0, 0.3, shape).astype(
      np.float32
    )
    for name, shape in shapes.items()
  }


def write(folder: pathlib.Path, fields, weights) -> None:
  """A folder as `save_pretrained` writes it, with a tokenizer of bytes."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text(json.dumps(fields))
  safetensors.numpy.save_file(weights, folder / "model.safetensors")
  write_tokenizer(folder)


def written(folder: pathlib.Path, name: str):
  """Writes the folder of a kind; its fields and its weights."""
  fields = SHAPE | KINDS[name]
  weights = tensors(fields)
  write(folder, fields, weights)
  return fields, weights


def write_tokenizer(folder: pathlib.Path) -> None:
  """A tokenizer.json whose symbols are bytes, and the end of a text."""
  names = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {name: index for index, name in enumerate(names)}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges=[]))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(["<|endoftext|>"])
  tokenizer.save(str(folder / "tokenizer.json"))


def log_probabilities(fields, weights, tokens):
  """Those of the next token after each of `tokens`, [T, V]."""
  values = {name: np.float64(array) for name, array in weights.items()}
  window = len(tokens)
  if fields["model_type"] == "mistral" or fields.get("use_sliding_window"):
    window = fields["sliding_window"] or window
  embedding = values["model.embed_tokens.weight"]
  softmax = values.get("lm_head.weight", embedding)
  hidden = embedding[tokens]
  for layer in range(fields["num_hidden_layers"]):
    prefix = f"model.layers.{layer}."
    own = {
      name.removeprefix(prefix): array
      for name, array in values.items()
      if name.startswith(prefix)
    }
    normal = _norm(hidden, own["input_layernorm.weight"], fields)
    hidden = hidden + _attention(normal, own, fields, window)
    normal = _norm(hidden, own["post_attention_layernorm.weight"], fields)
    gate = normal @ own["mlp.gate_proj.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (normal @ own["mlp.up_proj.weight"].T)
    hidden = hidden + inner @ own["mlp.down_proj.weight"].T
  logits = _norm(hidden, values["model.norm.weight"], fields) @ softmax.T
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _norm(rows, scale, fields):
  squares = np.mean(rows**2, axis=-1, keepdims=True)
  return rows / np.sqrt(squares + fields["rms_norm_eps"]) * scale


def _attention(rows, own, fields, window):
  heads = fields["num_attention_heads"]
  head_dim = fields.get("head_dim") or fields["hidden_size"] // heads

  def projected(name):
    result = rows @ own[f"self_attn.{name}_proj.weight"].T
    result = result + own.get(f"self_attn.{name}_proj.bias", 0)
    result = result.reshape(len(rows), -1, head_dim)
    scale = own.get(f"self_attn.{name}_norm.weight")
    return result if scale is None else _norm(result, scale, fields)

  angles = np.arange(len(rows))[:, None] * _frequencies(fields, head_dim)
  query = _rotated(projected("q"), angles)
  key = _rotated(projected("k"), angles)
  value = projected("v")
  result = np.zeros(query.shape)
  for head in range(heads):
    shared = head // (heads // fields["num_key_value_heads"])
    for place in range(len(rows)):
      seen = slice(max(0, place - window + 1), place + 1)
      scores = key[seen, shared] @ query[place, head] / np.sqrt(head_dim)
      weights = np.exp(scores - scores.max())
      weights /= weights.sum()
      result[place, head] = weights @ value[seen, shared]
  flat = result.reshape(len(rows), -1)
  return flat @ own["self_attn.o_proj.weight"].T


def _rotated(rows, angles):
  """Pairs of channels k and k + d/2 as complex numbers."""
  half = rows.shape[-1] // 2
  turned = rows[..., :half] + 1j * rows[..., half:]
  turned = turned * np.exp(1j * angles)[:, None]
  return np.concatenate([turned.real, turned.imag], axis=-1)


def _frequencies(fields, head_dim):
  scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
  base = scaling.get("rope_theta", fields.get("rope_theta", 10000.0))
  found = base ** (-np.arange(0, head_dim, 2) / head_dim)
  kind = scaling.get("rope_type", scaling.get("type", "default"))
  if kind == "linear":
    return found / scaling["factor"]
  if kind == "default":
    return found
  length = scaling["original_max_position_embeddings"]
  low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
  result = []
  for frequency in found:
    wavelength = 2 * np.pi / frequency
    slowed = frequency / scaling["factor"]
    smooth = (length / wavelength - low) / (high - low)
    if wavelength < length / high:
      result.append(frequency)
    elif wavelength > length / low:
      result.append(slowed)
    else:
      result.append((1 - smooth) * slowed + smooth * frequency)
  return np.array(result)
