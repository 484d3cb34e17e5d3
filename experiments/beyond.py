"""A small model on WikiText-2, to compare encodings and memories with.

Paper: no such model.
Measured: perplexity 287.2 on the test split, 1,070,960 parameters, mean of two
seeds; all rows are in docs/measurements/wikitext2_study.md.
Cost: about two minutes for a row on one x86-64 core; jax 0.10.2, 24 November
2026.
Run: python -m transformer_xl.main --mode=ablation --workdir=/tmp/beyond \
  --config=experiments/beyond.py --config.analysis.seeds="(0,1)"
"""

from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.analysis import vanilla
from transformer_xl.config import load
from transformer_xl.experiments import base

# What each study compares with this model: values by field, by variant.
# Twice and half as many tokens give the loss that it has at another time.
_MORE_TOKENS: dict[str, dict[str, Any]] = {
  "half": {"train.num_steps": 600},
  "double": {"train.num_steps": 2400},
}


def _recurrent(mixer: str, ff_dim: int) -> dict[str, Any]:
  """As many parameters, with another width of the feed-forward layers."""
  return {
    "model.layers": (mixer,),
    "model.ff_dim": ff_dim,
    "train.mem_len": 1,
    "eval.mem_len": (1,),
    "eval.warmup_len": 128,
  }


def _sized(mem_len: int, num_layers: int) -> dict[str, Any]:
  return {
    "model.num_layers": num_layers,
    "train.mem_len": mem_len,
    "eval.mem_len": (mem_len,),
  }


def _across(segments: int) -> dict[str, int]:
  """As many tokens in an update, of fewer lanes."""
  return {
    "train.gradient_segments": segments,
    "train.batch_size": 16 // segments,
  }


STUDIES: dict[str, dict[str, dict[str, Any]]] = {
  "networks": {
    "vanilla": {
      "train.mem_len": 0,
      "eval.mem_len": (0,),
    },
    "lstm": _recurrent("lstm", 64),
    "qrnn": _recurrent("qrnn", 192),
  },
  "memory_and_depth": {
    f"memory_{mem_len}-layers_{num_layers}": _sized(mem_len, num_layers)
    for num_layers in (1, 3)
    for mem_len in (0, 32, 128)
    if (mem_len, num_layers) != (32, 3)
  },
  "gradient_segments": {
    f"segments_{count}": _across(count) for count in (2, 4, 8)
  },
  # All but the first hold 3 layers of 64 states.
  "memories": {
    "longer": _sized(64, 3),
    "one_long_layer": {
      "model.layers": ("attention:16", "attention:16", "attention"),
      **_sized(160, 3),
    },
    **{
      f"compressed_{name}": {
        "model.layers": ("compressive",),
        "model.compressive.function": name,
        "model.compressive.slots": 32,
        "eval.mem_len": (32,),
      }
      for name in ("mean", "conv")
    },
  },
}


def get_config(study: str = "") -> ml_collections.ConfigDict:
  config = _experiment()
  if not study:
    return config
  if study not in STUDIES:
    raise errors.UserError(
      f"experiments/beyond.py has no study {study!r}; it has "
      f"{', '.join(STUDIES)}."
    )
  variants: dict[str, dict[str, Any]] = (
    {"base": {}} | STUDIES[study] | _MORE_TOKENS
  )
  if study == "networks":
    model = load.from_config_dict(config).model
    for name, value in vanilla.changes(model).items():
      variants["vanilla"][f"model.{name}"] = value
  config.analysis.variants = tuple(
    f"{name}: " + "; ".join(f"{path}={value}" for path, value in each.items())
    for name, each in variants.items()
  )
  config.analysis.seeds = (0, 1)
  return config


def _experiment() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "wikitext2"
  config.model.update(
    {
      "vocab_size": 33_278,
      "num_layers": 3,
      "model_dim": 128,
      "num_heads": 4,
      "head_dim": 32,
      "ff_dim": 256,
      "cutoffs": (1_000, 8_000),
      "div_val": 4,
      "cluster_capacities": (0.35, 0.2),
      "pre_norm": True,  # Post-norm hardly learns within so few steps.
      "num_positions": 32,
      "dropout_rate": 0.0,  # Training is shorter than one epoch.
    }
  )
  config.train.update(
    {
      "num_steps": 1200,
      "batch_size": 16,
      "segment_len": 32,
      "mem_len": 32,
      "learning_rate": 4e-3,
      "warmup_steps": 50,
      "log_every_steps": 100,
      "eval_every_steps": 0,
    }
  )
  config.eval.update({"segment_len": 32, "mem_len": (32, 128)})
  config.checkpoint.every_steps = 1200
  config.analysis.split = "test"  # As in docs/measurements/wikitext2_study.md.
  config.analysis.rows = (
    *("recurrent-relative-all", "recurrent-rope-all", "recurrent-alibi-all"),
    *("recurrent-shaw-all", "recurrent-absolute-all", "segment-relative-all"),
    *("segment-rope-all", "segment-alibi-all", "segment-absolute-all"),
  )
  config.analysis.attention_lens = (128,)
  return config
