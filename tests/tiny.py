"""Configurations small enough for a test."""

from typing import Any

import ml_collections

from experiments import base
from transformer_xl import config as config_lib

MODEL = {
  "vocab_size": 23,
  "num_layers": 2,
  "model_dim": 8,
  "num_heads": 2,
  "head_dim": 4,
  "ff_dim": 12,
  "dropout_rate": 0.0,
}


def config_dict(**updates: Any) -> ml_collections.ConfigDict:
  """The base experiment with a tiny model; updates as `{"model.ff_dim": 4}`."""
  config = base.get_config()
  config.model.update(MODEL)
  config.update_from_flattened_dict(updates)
  return config


def model_config(**updates: Any) -> config_lib.ModelConfig:
  """A tiny model; updates name fields of the model."""
  config = base.get_config()
  config.model.update(MODEL | updates)
  return config_lib.from_config_dict(config).model
