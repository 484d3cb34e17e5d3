"""A vanilla Transformer of the same size as another experiment's model.

It has no memory and absolute positions, and otherwise the other experiment's
text, segments, schedule and number of parameters: wider feed-forward layers
replace the parameters of its encoding. All modes read text as training does, in
segments of its length. The learning rate is that of the other experiment unless
--config.train.learning_rate sets one that suits it.
Measured: docs/measurements/analyses.md.
Run: python -m transformer_xl.main --workdir=/tmp/vanilla \
  --config=experiments/vanilla.py:ablation_ptb
"""

import importlib

import ml_collections

from transformer_xl import errors
from transformer_xl.analysis import vanilla
from transformer_xl.config import load


def get_config(name: str = "") -> ml_collections.ConfigDict:
  try:
    config = importlib.import_module(
      f"transformer_xl.experiments.{name}"
    ).get_config()
  except ModuleNotFoundError:
    raise errors.UserError(
      f"there is no experiments/{name}.py to make a vanilla Transformer from; "
      "name an experiment, as in --config=experiments/vanilla.py:ptb_small."
    ) from None
  model = load.from_config_dict(config).model
  config.model.update(vanilla.changes(model))
  without_memory = {"clamp_len": 0, "same_length": False}
  config.train.update(
    {
      **without_memory,
      "mem_len": 0,
      "log_memory_use": False,
    }
  )
  config.eval.update({**without_memory, "mem_len": (0,)})
  config.generate.mem_len = 0
  config.score.mem_len = 0
  # These follow the lengths of training, also where a flag changes them. An
  # evaluation that reads a context again has lengths without memory already.
  segment_len = config.train.get_oneway_ref("segment_len")
  context_len = config.train.get_oneway_ref("context_len")
  if not config.eval.context_len:
    config.eval.segment_len = segment_len
  config.generate.segment_len = context_len + segment_len
  config.score.segment_len = context_len + segment_len
  return config
