"""Your own text: settings that fit the size of the prepared text.

Paper: no such model. Measured on WikiText-2 as bytes: validation in nats per
byte, beside that of quickstart.py after it has read as much.

    training bytes  tokens read  own_text  quickstart
           180,702      819,200     1.924       2.025
         1,982,683      307,200     2.104       2.191

First row: this file for 1600 updates (--config.train.warmup_steps=100) and
quickstart.py for 400, because an update here reads a quarter as many tokens.
After 400 updates this file is at 2.132, with pre_norm at 2.192. With pre_norm
and a dropout of 0.2 it ends at 2.029. Second row: after 150 of 400 updates
(--config.train.warmup_steps=50), where the run was stopped.
jax 0.10.2, 23 November 2026.
Cost: not measured on an idle machine; the log says how long a run takes.
Run: python -m transformer_xl.main --config=experiments/own_text.py:books \
  --workdir=runs/books
"""

import os
from typing import NamedTuple

import ml_collections

from transformer_xl import errors
from transformer_xl.data import token_file
from transformer_xl.experiments import base

_MOST_READS = 10  # Validation seldom improves after more.
_MOST_STEPS = 100_000
_CALL = 10  # Updates in one compiled call; intervals are multiples of it.


class _Size(NamedTuple):
  """Settings for texts of fewer training tokens than `below`."""

  below: float
  num_layers: int
  model_dim: int  # The widths of the heads add up to it.
  num_heads: int
  pre_norm: bool
  batch_size: int
  segment_len: int
  learning_rate: float


# Little text needs small updates, so that there are enough of them. The wider
# models learn sooner with pre_norm, the smallest does not.
_SIZES = (
  _Size(1e6, 4, 192, 4, False, 8, 64, 1e-3),
  _Size(1e7, 4, 256, 4, True, 16, 128, 1e-3),
  _Size(1e8, 6, 384, 6, True, 32, 128, 5e-4),
  _Size(float("inf"), 12, 512, 8, True, 32, 256, 2.5e-4),
)


def get_config(dataset: str = "") -> ml_collections.ConfigDict:
  if not dataset:
    raise errors.UserError(
      "name the folder of the prepared text in data/, as in "
      "--config=experiments/own_text.py:books, or its path."
    )
  folder, name = os.path.split(os.path.expanduser(dataset.rstrip("/")))
  config = base.get_config()
  config.data.update({"name": name, "dir": folder or config.data.dir})
  prepared = os.path.join(config.data.dir, name)
  meta = token_file.read_meta(prepared)
  num_tokens = len(token_file.open_split(prepared, "train").tokens)
  size = next(size for size in _SIZES if num_tokens < size.below)
  _set_model(config.model, size, tuple(meta.get("suggested_cutoffs", ())))
  _set_lengths(config, size, num_tokens)
  _set_held_out(config, meta["splits"])
  config.generate.update({"prompt": "\n", "num_tokens": 400})
  return config


def _set_model(model, size: _Size, cutoffs: tuple[int, ...]) -> None:
  """Sets the shape; a vocabulary with rare symbols gets narrower tails."""
  model.update(
    {
      "num_layers": size.num_layers,
      "model_dim": size.model_dim,
      "num_heads": size.num_heads,
      "head_dim": size.model_dim // size.num_heads,
      "ff_dim": 4 * size.model_dim,
      "pre_norm": size.pre_norm,
      "dropout_rate": 0.1,
      "cutoffs": cutoffs,
      "div_val": 2 if cutoffs else 1,
    }
  )


def _set_lengths(config, size: _Size, num_tokens: int) -> None:
  """Sets lengths in tokens and in updates."""
  per_update = size.batch_size * size.segment_len
  calls = _MOST_READS * num_tokens // (per_update * _CALL)
  num_steps = _CALL * min(max(calls, 2), _MOST_STEPS // _CALL)
  memory = 2 * size.segment_len
  config.train.update(
    {
      "num_steps": num_steps,
      "batch_size": size.batch_size,
      "segment_len": size.segment_len,
      "mem_len": memory,
      "learning_rate": size.learning_rate,
      "warmup_steps": min(1000, num_steps // 20),
      "segments_per_call": _CALL,
    }
  )
  config.eval.mem_len = (0, memory, 4 * memory)


def _set_held_out(config, splits) -> None:
  """Validates twenty times and reports the best checkpoint, where it can."""
  train = config.train
  every_steps = _CALL * max(1, train.num_steps // (20 * _CALL))
  config.checkpoint.every_steps = every_steps
  train.eval_every_steps = every_steps if "valid" in splits else 0
  train.finish_with = (
    ("eval", "generate") if "test" in splits else ("generate",)
  )
  config.eval.checkpoint = "best" if "valid" in splits else "latest"
