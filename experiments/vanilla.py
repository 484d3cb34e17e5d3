"""A vanilla Transformer of the same size as another experiment's model.

It has no memory and absolute positions, and otherwise the other experiment's
text, segments, schedule and number of parameters: wider feed-forward layers
replace the projections of relative positions. The learning rate is that of the
other experiment unless --config.train.learning_rate sets one that suits it.
Measured: docs/measurements/analyses.md.
Run: python -m transformer_xl.main --workdir=/tmp/vanilla \
  --config=experiments/vanilla.py:ablation_ptb
"""

import importlib

import ml_collections

from transformer_xl import errors
from transformer_xl.config import vanilla


def get_config(name: str = "") -> ml_collections.ConfigDict:
  try:
    config = importlib.import_module(f"experiments.{name}").get_config()
  except ModuleNotFoundError:
    raise errors.UserError(
      f"there is no experiments/{name}.py to make a vanilla Transformer from; "
      "name an experiment, as in --config=experiments/vanilla.py:ptb_small."
    ) from None
  config.model.update(vanilla.changes(config.model))
  config.train.update({"mem_len": 0, "clamp_len": 0})
  config.eval.update({"mem_len": (0,), "clamp_len": 0})
  return config
