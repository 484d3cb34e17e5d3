"""HuggingFace's TransfoXL: folders with config.json and weights.

The format is described in docs/specification.md, section 21.1.
"""

import json
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.formats import torch_file
from transformer_xl.importers import mapping
from transformer_xl.importers import source
from transformer_xl.importers import torch_layout
from transformer_xl.model.encodings import table

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
VOCABULARIES = ("vocab.pkl", "vocab.bin", "vocab.txt")
# Defaults of transformers 4.35.2, for fields that a config.json omits.
DEFAULTS = {
  "vocab_size": 267735,
  "cutoffs": [20000, 40000, 200000],
  "d_model": 1024,
  "d_embed": 1024,
  "n_head": 16,
  "d_head": 64,
  "d_inner": 4096,
  "div_val": 4,
  "pre_lnorm": False,
  "n_layer": 18,
  "mem_len": 1600,
  "clamp_len": 1000,
  "same_length": True,
  "proj_share_all_but_first": True,
  "attn_type": 0,
  "sample_softmax": -1,
  "dropout": 0.1,
  "dropatt": 0.0,
  "untie_r": True,
  "init_std": 0.02,
  "proj_init_std": 0.01,
  "layer_norm_epsilon": 1e-5,
  "tie_word_embeddings": True,
}


def read(path: str) -> source.Source:
  """Reads a folder that `save_pretrained` wrote.

  Raises:
    UserError: a file is missing or damaged, or the model is of another kind.
  """
  fields = _read_config(os.path.join(path, "config.json"))
  weights = [
    name for name in WEIGHTS if os.path.exists(os.path.join(path, name))
  ]
  if not weights:
    raise errors.UserError(
      f"{path} has no weights; it needs one of {', '.join(WEIGHTS)}."
    )
  file = os.path.join(path, weights[0])
  if file.endswith(".bin"):
    tensors: Mapping[str, NDArray[Any]] = torch_file.read(file).tensors()
  else:
    tensors = read_safetensors(file)
  return source.Source(
    tensors=tensors,
    files=(file,),
    model=_model(fields, file),
    lengths=source.Lengths(
      segment_len=fields.get("tgt_len") or 128,
      mem_len=fields["mem_len"],
      clamp_len=max(fields["clamp_len"], 0),
      same_length=fields["same_length"],
    ),
    vocabulary=source.find(path, VOCABULARIES),
  )


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the tensors of a language model with its softmax."""
  return torch_layout.layout(
    config, prefix="transformer.", reverse_clusters=False
  )


def read_safetensors(path: str) -> dict[str, NDArray[Any]]:
  """Reads all tensors of a file; the format cannot contain code."""
  try:
    return safetensors.numpy.load_file(path)
  except (safetensors.SafetensorError, OSError, KeyError) as error:
    raise errors.UserError(
      f"{path} is truncated, damaged or no safetensors file ({error}); copy "
      "it again."
    ) from None


def config_fields(
  config: schema.ModelConfig, lengths: source.Lengths
) -> dict[str, Any]:
  """Returns the fields of config.json for a model.

  Raises:
    UserError: HuggingFace's model cannot represent it.
  """
  num_tails = len(config.cutoffs)
  if not table.of(config).is_published:
    raise errors.UserError(
      f"model.encoding={config.encoding} has no counterpart in HuggingFace's "
      "model, which knows 'relative' only; such a model cannot be exported."
    )
  if config.div_val > 1 and not config.project_equal_width:
    raise errors.UserError(
      "model.project_equal_width=False has no counterpart in HuggingFace's "
      "model, which always has a projection if div_val > 1; such a model "
      "cannot be exported."
    )
  tied = {"none": [False] * (num_tails + 1), "all": [True] * (num_tails + 1)}
  return {
    "architectures": ["TransfoXLLMHeadModel"],
    "model_type": "transfo-xl",
    "vocab_size": config.vocab_size,
    "cutoffs": list(config.cutoffs),
    "d_model": config.model_dim,
    "d_embed": config.embed_dim,
    "n_head": config.num_heads,
    "d_head": config.head_dim,
    "d_inner": config.ff_dim,
    "div_val": config.div_val,
    "pre_lnorm": config.pre_norm,
    "n_layer": config.num_layers,
    "mem_len": lengths.mem_len,
    "clamp_len": lengths.clamp_len or -1,
    "same_length": lengths.same_length,
    "proj_share_all_but_first": config.tie_projections == "all_but_first",
    "tie_projs": tied.get(config.tie_projections, [False] + [True] * num_tails),
    "attn_type": 0,
    "sample_softmax": -1,
    "dropout": config.dropout_rate,
    "dropatt": config.attention_dropout_rate,
    "untie_r": config.untie_biases,
    "init_std": config.init_std,
    "proj_init_std": config.projection_init_std,
    "layer_norm_epsilon": config.layer_norm_epsilon,
    "tie_word_embeddings": config.tie_weights,
  }


def _read_config(path: str) -> dict[str, Any]:
  try:
    with open(path, encoding="utf-8") as file:
      fields = json.load(file)
  except FileNotFoundError:
    raise errors.UserError(
      f"{path} is missing; --format=huggingface needs the folder that "
      "save_pretrained wrote."
    ) from None
  except (ValueError, RecursionError) as error:
    raise errors.UserError(f"{path} is not JSON ({error}).") from None
  kind = fields.get("model_type") if isinstance(fields, dict) else None
  if kind != "transfo-xl":
    raise errors.UserError(
      f"{path} describes a model of the type {kind!r}; only 'transfo-xl' can "
      "be imported."
    )
  for name, default in DEFAULTS.items():
    value = fields.setdefault(name, default)
    allowed = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, allowed):
      raise errors.UserError(
        f"{path} has {name}={value!r}, which must be like {default!r}; restore "
        "the file that save_pretrained wrote."
      )
  return fields


def _model(fields: dict[str, Any], path: str) -> dict[str, Any]:
  """Fields of our `ModelConfig`."""
  if fields["attn_type"] != 0 or fields["sample_softmax"] > 0:
    raise errors.UserError(
      f"{path} has attn_type={fields['attn_type']} and sample_softmax="
      f"{fields['sample_softmax']}; only relative attention (0) and the full "
      "softmax (-1) can be imported."
    )
  cutoffs = tuple(fields["cutoffs"])
  share = fields["proj_share_all_but_first"]
  tied = fields.get("tie_projs", [False] + [bool(share)] * len(cutoffs))
  return {
    "vocab_size": fields["vocab_size"],
    "num_layers": fields["n_layer"],
    "model_dim": fields["d_model"],
    "num_heads": fields["n_head"],
    "head_dim": fields["d_head"],
    "ff_dim": fields["d_inner"],
    "embed_dim": fields["d_embed"],
    "cutoffs": cutoffs,
    "div_val": fields["div_val"],
    "tie_weights": fields["tie_word_embeddings"],
    "tie_projections": source.tie_projections(tied),
    "project_equal_width": True,
    "untie_biases": fields["untie_r"],
    "pre_norm": fields["pre_lnorm"],
    "dropout_rate": fields["dropout"],
    "attention_dropout_rate": float(fields["dropatt"]),
    "memory_start": "zeros",
    "same_length_window": "mem_len",
    "layer_norm_epsilon": fields["layer_norm_epsilon"],
    "init_style": "pytorch",
    "init_std": fields["init_std"],
    "projection_init_std": fields["proj_init_std"],
  }
