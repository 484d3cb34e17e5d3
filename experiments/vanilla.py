"""The vanilla Transformer to compare an experiment with.

It has no recurrence and absolute positions, and the other's parameters (its
feed-forward layers are wider by those of the relative positions), tokens,
segment and schedule. The learning rate is its own to set; without
--config.train.learning_rate it is the original's, which was not tuned for it.
Measured: docs/measurements/analyses.md.
Run: python -m transformer_xl.main --workdir=/tmp/vanilla \
  --config=experiments/vanilla.py:ablation_ptb
"""

import importlib

import ml_collections

from transformer_xl import errors
from transformer_xl.config import vanilla


def get_config(name: str) -> ml_collections.ConfigDict:
  try:
    config = importlib.import_module(f"experiments.{name}").get_config()
  except ModuleNotFoundError:
    raise errors.UserError(
      f"there is no experiments/{name}.py to make a vanilla twin of; name one, "
      "as in --config=experiments/vanilla.py:ptb_small."
    ) from None
  model = config.model
  model.encoding = "absolute"
  model.ff_dim += vanilla.more_units(
    model_dim=model.model_dim, attention_dim=model.num_heads * model.head_dim
  )
  config.train.mem_len = 0
  config.train.clamp_len = config.eval.clamp_len = 0
  config.eval.mem_len = (0,)
  return config
