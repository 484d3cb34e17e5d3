"""Your own text: settings that fit the size of the prepared text.

Paper: no such model. Measured as bytes on one core: validation in nats per
byte, by minutes with starting, compiling and validating.

    text                        0.5    1.0    2.0   end
    WikiText-2, first 1.1 MB   1.87   1.72   1.54   1.457 after 2.6
    Penn Treebank, 1.1 MB      1.63   1.44   1.21   1.172 after 2.5
    WikiText-2, 10.8 MB                             1.288 after 40
    Python's sources, 100 MB                        0.755 after 70

Dropout, width, lanes and learning rates were compared on three texts of 1.1 MB,
dropout on three of 110 kB as well. With the paper's block `:long` reaches 1.338
after 39 minutes on WikiText-2's validation file
(docs/measurements/training.md).
jax 0.10.2, bfloat16 by AVX-512 or AMX, 26 and 27 November 2026.
Cost: the log says it after the first updates.
Run: python -m transformer_xl.main --config=experiments/own_text.py:books \
  --workdir=runs/books
"""

import os
from typing import NamedTuple

import ml_collections

from transformer_xl import errors
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.experiments import base

_LONG = "long"  # Behind the name of the text: a larger model, more updates.
_MOST_READS = 10  # Validation seldom improves after more.
_CALL = 10  # Updates in one compiled call; intervals are multiples of it.
_PROMPT_CHARACTERS = 60


class _Size(NamedTuple):
  """Settings for texts of fewer training tokens than `below`."""

  below: float
  num_layers: int
  model_dim: int
  num_heads: int  # Their widths add up to model_dim.
  dropout_rate: float
  batch_size: int
  segment_len: int
  mem_len: int
  learning_rate: float
  most_steps: int


# The first are for a good model within minutes, or an hour for much text, the
# others for a better one within an hour or more. Updates are small: on a
# processor many small ones learn more in the same time than few large ones.
_SIZES = (
  _Size(3e5, 4, 128, 4, 0.1, 8, 128, 128, 3e-3, 1_000),
  _Size(7e5, 4, 128, 4, 0.05, 8, 128, 128, 3e-3, 2_400),
  _Size(3e6, 4, 128, 4, 0.0, 8, 128, 128, 3e-3, 2_400),
  _Size(float("inf"), 4, 192, 4, 0.0, 16, 128, 256, 2e-3, 5_000),
)
_LONG_SIZES = (
  _SIZES[0],
  _Size(3e6, 4, 192, 4, 0.1, 8, 128, 256, 2e-3, 10_000),
  _Size(float("inf"), 6, 256, 4, 0.1, 16, 128, 256, 1.5e-3, 20_000),
)


def get_config(dataset: str = "") -> ml_collections.ConfigDict:
  """Settings for the text in the folder `dataset`, or `dataset:long`."""
  if not dataset:
    raise errors.UserError(
      "name the folder of the prepared text in data/, as in "
      "--config=own_text:books, or its path; own_text:books:long trains a "
      "larger model for longer."
    )
  path, colon, length = dataset.rpartition(":")
  is_long = bool(colon) and length == _LONG
  if colon and not is_long and "/" not in length:  # Else of gs://BUCKET/NAME.
    raise errors.UserError(
      f"own_text:{dataset} ends in {length!r}, but only 'long' may follow the "
      f"name of the text: --config=own_text:{path}:{_LONG}"
    )
  path = os.path.expanduser((path if is_long else dataset).rstrip("/"))
  folder, name = os.path.split(path)
  config = base.get_config()
  config.data.update({"name": name, "dir": folder or config.data.dir})
  prepared = os.path.join(config.data.dir, name)
  meta = token_file.read_meta(prepared)
  num_tokens = len(token_file.open_split(prepared, "train").tokens)
  sizes = _LONG_SIZES if is_long else _SIZES
  size = next(size for size in sizes if num_tokens < size.below)

  # A vocabulary with rare symbols gets narrower tails.
  cutoffs = tuple(meta.get("suggested_cutoffs", ()))
  config.model.update(
    {
      "num_layers": size.num_layers,
      "model_dim": size.model_dim,
      "num_heads": size.num_heads,
      "head_dim": size.model_dim // size.num_heads,
      # The block of experiments/modern.py. Its three matrices have about as
      # many products as two with four times the width.
      "ff_dim": 8 * round(size.model_dim / 3),
      "feed_forward": "swiglu",
      "norm": "rms",
      "qk_norm": True,
      "pre_norm": True,
      "dropout_rate": size.dropout_rate,
      "init_std": 0.05,
      "cutoffs": cutoffs,
      "div_val": 2 if cutoffs else 1,
      "dtype": "auto",
    }
  )

  per_update = size.batch_size * size.segment_len
  num_steps = min(size.most_steps, _MOST_READS * num_tokens // per_update)
  # Intervals follow the number of updates, also one that a flag sets: warm-up
  # is a twentieth, and there are about twenty validations, or fewer where they
  # would take more than a tenth of the time: to score a token takes a third as
  # long as to train on it.
  steps = config.train.get_oneway_ref("num_steps")
  twentieth = (steps // (20 * _CALL) + 1) * _CALL
  splits = meta["splits"]
  num_validated = splits["valid"]["num_tokens"] if "valid" in splits else 0
  batch_size = config.train.get_oneway_ref("batch_size")
  segment_len = config.train.get_oneway_ref("segment_len")
  in_call = _CALL * _larger(batch_size * segment_len, 1)  # A flag may set 0.
  tenth = (3 * num_validated // in_call + 1) * _CALL
  config.train.update(
    {
      "num_steps": _CALL * max(2, num_steps // _CALL),
      "batch_size": size.batch_size,
      "segment_len": size.segment_len,
      "mem_len": size.mem_len,
      "learning_rate": size.learning_rate,
      "warmup_steps": steps // 20,
      "adam_b2": 0.99,
      "segments_per_call": _CALL,
      "log_every_steps": (steps // (100 * _CALL) + 1) * _CALL,
      "eval_every_steps": _larger(twentieth, tenth) if "valid" in splits else 0,
    }
  )
  config.checkpoint.every_steps = twentieth

  # The checkpoint with the lowest validation loss is evaluated and writes.
  finish = ("generate", "report")
  config.train.finish_with = ("eval", *finish) if "test" in splits else finish
  config.eval.update(
    {
      "split": next(s for s in ("test", "valid", "train") if s in splits),
      "mem_len": (0, size.mem_len, 4 * size.mem_len),
      "checkpoint": "best" if "valid" in splits else "latest",
    }
  )
  config.generate.update(
    {
      "prompt": _prompt(prepared, "valid" if "valid" in splits else "train"),
      "num_tokens": 400,
      "mem_len": size.mem_len,
    }
  )
  return config


def _larger(
  one: ml_collections.FieldReference, other: ml_collections.FieldReference | int
) -> ml_collections.FieldReference:
  """The larger of two whole numbers that flags may set later."""
  return (one + other + abs(one - other)) // 2


def _prompt(prepared: str, split: str) -> str:
  """The start of the first line of a split that has text."""
  tokens = token_file.open_split(prepared, split).tokens
  start = [int(token) for token in tokens[: 20 * _PROMPT_CHARACTERS]]
  text = vocabulary.load(prepared).decode(start)
  lines = (line.strip() for line in text.partition("\ufffd")[0].splitlines())
  line = next(filter(None, lines), "\n")
  if len(line) <= _PROMPT_CHARACTERS:
    return line
  cut = line[:_PROMPT_CHARACTERS]
  return cut.rpartition(" ")[0] or cut
