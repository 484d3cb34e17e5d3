"""Models of today: llama, mistral, qwen2 and qwen3 of HuggingFace.

Decoders with rotary positions, RMS norms in front of each part, gated
feed-forward parts and grouped queries. Their layers are attention with the
options of our block, so that nothing but names differs
(docs/specification.md, section 21.4).
"""

import contextlib
import json
from collections.abc import Iterator
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.importers import mapping
from transformer_xl.model import visibility
from transformer_xl.model.encodings import rope

# A constant buffer of older versions.
IGNORED = r"(^|\.)rotary_emb\.inv_freq$"
TOKENIZERS = ("tokenizer.json",)
_UNTIED = "lm_head.weight"
_SEGMENT_LEN = 512  # Tokens that are read at once, where the source says none.
_MOST_MEMORY = 4096  # Tokens; models of today name lengths of a million.


class _Kind(NamedTuple):
  """What a `model_type` decides, and what it means where config.json is mute.

  Attributes:
    qkv_bias: queries, keys and values have biases.
    reads_bias: `attention_bias` decides on biases of all four projections.
    qk_norm: queries and keys are normalised.
    window: which layers have the `sliding_window`: "none", "all", or with
      `use_sliding_window` those "by_layer".
    num_kv_heads: None for as many as queries have.
    head_dim: None for the width divided by the heads.
  """

  qkv_bias: bool = False
  reads_bias: bool = False
  qk_norm: bool = False
  window: str = "none"
  num_kv_heads: int | None = None
  head_dim: int | None = None


# Numbers that a file need not have are those of transformers 5.
KINDS = {
  "llama": _Kind(reads_bias=True),
  "mistral": _Kind(window="all", num_kv_heads=8),
  "qwen2": _Kind(qkv_bias=True, window="by_layer", num_kv_heads=32),
  "qwen3": _Kind(
    reads_bias=True,
    qk_norm=True,
    window="by_layer",
    num_kv_heads=32,
    head_dim=128,
  ),
}
_RMS_NORM_EPS = 1e-6
_SLIDING_WINDOW = 4096
_MAX_WINDOW_LAYERS = 28  # The first layer with a window.
# What Python says of a value that is none.
_DAMAGE = (
  LookupError,
  TypeError,
  ValueError,
  AttributeError,
  ArithmeticError,
)
_LAYER = {
  "self_attn.q_proj.weight": "attention/query",
  "self_attn.k_proj.weight": "attention/key",
  "self_attn.v_proj.weight": "attention/value",
  "self_attn.q_proj.bias": "attention/query_bias",
  "self_attn.k_proj.bias": "attention/key_bias",
  "self_attn.v_proj.bias": "attention/value_bias",
  "self_attn.q_norm.weight": "attention/query_scale",
  "self_attn.k_norm.weight": "attention/key_scale",
  "self_attn.o_proj.weight": "attention/output",
  "mlp.up_proj.weight": "feed_forward/in_kernel",
  "mlp.gate_proj.weight": "feed_forward/gate_kernel",
  "mlp.down_proj.weight": "feed_forward/out_kernel",
  "input_layernorm.weight": "mixer_norm/scale",
  "post_attention_layernorm.weight": "feed_forward_norm/scale",
}
# What must have one value, if config.json has it at all.
_ONLY = {
  "hidden_act": "silu",
  "mlp_bias": False,
  "pretraining_tp": 1,
  "partial_rotary_factor": 1.0,
}


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the tensors of a model with its softmax."""
  params = mapping.parameter_shapes(config)
  tied = (_UNTIED,) if config.tie_weights else ()
  yield mapping.Tensor(
    "model.embed_tokens.weight", ("embedding/table_0",), aliases=tied
  )
  for layer in range(config.num_layers):
    for theirs, name in _LAYER.items():
      ours = f"{mapping.LAYERS}/{name}"
      if ours in params:
        yield mapping.Tensor(
          f"model.layers.{layer}.{theirs}", (ours,), layer, transpose=True
        )
  yield mapping.Tensor("model.norm.weight", ("final_norm/scale",))
  if not config.tie_weights:
    yield mapping.Tensor(_UNTIED, ("softmax/kernel_0",))


def module(matrix: str) -> str:
  """Their name in a layer of one of our matrices, such as `attention/query`."""
  names = {ours: theirs for theirs, ours in _LAYER.items()}
  return names[matrix].removesuffix(".weight")


def model(fields: mapping.Fields, path: str) -> mapping.Fields:
  """Fields of our `ModelConfig` for a config.json, which stands at `path`.

  Raises:
    UserError: it describes what our block has not.
  """
  kind = KINDS[fields["model_type"]]
  for name, only in _ONLY.items():
    if fields.get(name, only) != only:
      raise _unknown(path, name, fields[name], f"{json.dumps(only)}")
  if kind.reads_bias and fields.get("attention_bias"):
    raise _unknown(path, "attention_bias", fields["attention_bias"], "false")
  with _reading(path):
    num_heads = fields["num_attention_heads"]
    num_kv_heads = fields.get("num_key_value_heads", kind.num_kv_heads)
    model_dim = fields["hidden_size"]
    head_dim = fields.get("head_dim", kind.head_dim)
    found = {
      "vocab_size": fields["vocab_size"],
      "num_layers": fields["num_hidden_layers"],
      "model_dim": model_dim,
      "embed_dim": model_dim,
      "num_heads": num_heads,
      "num_kv_heads": num_kv_heads or num_heads,
      "head_dim": head_dim or model_dim // num_heads,
      "ff_dim": fields["intermediate_size"],
      "layer_norm_epsilon": float(fields.get("rms_norm_eps", _RMS_NORM_EPS)),
      "tie_weights": bool(fields.get("tie_word_embeddings", False)),
      "attention_dropout_rate": float(fields.get("attention_dropout", 0.0)),
      "init_std": float(fields.get("initializer_range", 0.02)),
    }
    positions = _rope(fields, path)
  return {
    **found,
    "qkv_bias": kind.qkv_bias,
    "qk_norm": kind.qk_norm,
    "cutoffs": (),
    "scale_embeddings": False,
    "softmax_bias": False,
    "pre_norm": True,
    "final_norm": True,
    "norm": "rms",
    "feed_forward": "swiglu",
    "encoding": "rope",
    "rope": positions,
    "dropout_rate": 0.0,
    "memory_start": "masked",
    "same_length_window": "mem_len",
  }


def lengths(fields: mapping.Fields, path: str) -> mapping.Lengths:
  """How the model reads: with a sliding window, or as far as it was trained.

  Raises:
    UserError: only some layers have a window, or the file is damaged.
  """
  with _reading(path):
    window = _window(fields, path)
    longest = int(fields.get("max_position_embeddings") or _MOST_MEMORY)
    mem_len = min(longest, _MOST_MEMORY) if window is None else window
    return mapping.Lengths(
      segment_len=min(_SEGMENT_LEN, mem_len),
      mem_len=mem_len,
      clamp_len=0,
      same_length=window is not None,
    )


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Says that config.json is damaged where its values are no such values."""
  try:
    yield
  except _DAMAGE as error:
    raise errors.UserError(
      f"{path} is damaged ({type(error).__name__}: {error}); restore the file "
      "that save_pretrained wrote."
    ) from None


def _window(fields: mapping.Fields, path: str) -> int | None:
  """The keys that a token sees, with its own; None for all."""
  kind = KINDS[fields["model_type"]]
  window = fields.get("sliding_window", _SLIDING_WINDOW)
  if kind.window == "none" or window is None:
    return None
  first = 0
  if kind.window == "by_layer":
    if not fields.get("use_sliding_window"):
      return None  # Qwen names a window that it does not use.
    first = fields.get("max_window_layers", _MAX_WINDOW_LAYERS)
  of_layers = fields.get("layer_types")
  if of_layers is None:
    of_layers = [
      "sliding_attention" if layer >= first else "full_attention"
      for layer in range(fields["num_hidden_layers"])
    ]
  kinds = set(of_layers)
  if len(kinds) > 1:
    raise _unknown(path, "layer_types", sorted(kinds), "one kind of layer")
  return None if kinds == {"full_attention"} else window


def _rope(fields: mapping.Fields, path: str) -> mapping.Fields:
  """Fields of `model.rope`, by what versions 4 and 5 of transformers write.

  With both, transformers takes the older entry, and nothing of the newer one.
  """
  given = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
  base = given.get("rope_theta") or fields.get("rope_theta") or 10000.0
  found: mapping.Fields = {"base": float(base)}
  kind = given.get("rope_type", given.get("type", "default"))
  if kind == "linear":
    found["position_scale"] = 1 / float(given["factor"])
  elif kind == "llama3":
    found |= {
      "long_factor": float(given["factor"]),
      "low_turns": float(given["low_freq_factor"]),
      "high_turns": float(given["high_freq_factor"]),
      "original_len": _original_len(fields, given),
    }
  elif kind != "default":
    raise _unknown(path, "rope_type", kind, "default, linear or llama3")
  return found


def _original_len(fields: mapping.Fields, given: mapping.Fields) -> int:
  """The length before `given` scaled it, by the first place that has it."""
  name = "original_max_position_embeddings"
  if fields.get(name) is not None:
    return int(fields[name])
  return int(
    given[name] if name in given else fields["max_position_embeddings"]
  )


def config_fields(
  config: schema.ModelConfig, lengths: mapping.Lengths
) -> mapping.Fields | None:
  """The config.json of a model that one of these types is; None for others.

  A model without a window attends to its whole text there, so what it reads,
  memory or a segment, is the length of text for which it is the same.
  """
  positions = _written_rope(config)
  kind = _kind(config, lengths)
  if kind is None or positions is None or not _is_decoder(config):
    return None
  architecture, window = kind
  return {
    "architectures": [f"{architecture}ForCausalLM"],
    "model_type": architecture.lower(),
    "vocab_size": config.vocab_size,
    "num_hidden_layers": config.num_layers,
    "hidden_size": config.model_dim,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "intermediate_size": config.ff_dim,
    "max_position_embeddings": lengths.mem_len or lengths.segment_len,
    "rms_norm_eps": config.layer_norm_epsilon,
    "rope_parameters": positions,
    "tie_word_embeddings": config.tie_weights,
    "attention_dropout": config.attention_dropout_rate,
    "initializer_range": config.init_std,
    "hidden_act": "silu",
    "dtype": "float32",
    **window,
  }


def _is_decoder(config: schema.ModelConfig) -> bool:
  """Whether a model has the block of these types, and nothing else."""
  wanted = {
    **{"encoding": "rope", "norm": "rms", "feed_forward": "swiglu"},
    **{"pre_norm": True, "final_norm": True, "scale_embeddings": False},
    **{"softmax_bias": False, "memory_start": "masked", "cutoffs": ()},
    **{"div_val": 1, "embed_dim": config.model_dim, "residual": "add"},
    "num_memory_tokens": 0,
  }
  return config.attends_everywhere and all(
    getattr(config, name) == value for name, value in wanted.items()
  )


def _kind(
  config: schema.ModelConfig, lengths: mapping.Lengths
) -> tuple[str, mapping.Fields] | None:
  """The type that has a model's options, and what it says of its window."""
  window: int | None = None
  if visibility.has_window(lengths.mem_len, same_length=lengths.same_length):
    window = lengths.mem_len + (config.same_length_window != "mem_len")
  options = (config.qkv_bias, config.qk_norm)
  if options == (False, False):
    # For transformers, the number of heads of a Llama must divide its width.
    if window is None and config.model_dim % config.num_heads == 0:
      return "Llama", {}
    return "Mistral", {"sliding_window": window}
  if options == (True, True):
    return None
  uses = {"use_sliding_window": window is not None, "max_window_layers": 0}
  name = "Qwen2" if config.qkv_bias else "Qwen3"
  return name, {"sliding_window": window, **uses}


def _written_rope(config: schema.ModelConfig) -> mapping.Fields | None:
  """The entry of config.json for `model.rope`; None if no type has it."""
  own = config.own(rope.Rope.Fields)
  base = {"rope_theta": own.base}
  if own.long_factor == 1:
    if own.position_scale == 1:
      return {"rope_type": "default", **base}
    return {"rope_type": "linear", "factor": 1 / own.position_scale, **base}
  if own.position_scale != 1:
    return None
  return {
    "rope_type": "llama3",
    "factor": own.long_factor,
    "low_freq_factor": own.low_turns,
    "high_freq_factor": own.high_turns,
    "original_max_position_embeddings": own.original_len,
    **base,
  }


def _unknown(
  path: str, name: str, value: object, known: str
) -> errors.UserError:
  return errors.UserError(
    f"{path} has {name}={json.dumps(value)}, and only {known} can be imported."
  )
