"""Configurations small enough for a test."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from experiments import base
from transformer_xl import config as config_lib
from transformer_xl import model as model_lib

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
  values = config.model.to_dict() | MODEL | updates
  # As plain values, where the width of the embedding follows that of the model
  # unless it is given.
  values["embed_dim"] = updates.get("embed_dim", values["model_dim"])
  config.model = ml_collections.ConfigDict(values)
  return config_lib.from_config_dict(config).model


@functools.cache
def params(config: config_lib.ModelConfig, *, seed: int = 0) -> dict:
  """The model's, as `draw` makes them."""
  shapes = jax.eval_shape(
    lambda key: model_lib.init_params(config, key), jax.random.key(0)
  )
  return draw(shapes, seed=seed)


def draw(shapes: dict, *, seed: int = 0) -> dict:
  """Parameters of which none is 0, 1 or small enough to be overlooked."""
  generator = np.random.default_rng(seed)

  def draw_one(path, leaf):
    centre = 1.0 if path[-1].key == "scale" else 0.0
    values = centre + 0.4 * generator.standard_normal(leaf.shape)
    return jnp.asarray(values, leaf.dtype)

  return jax.tree_util.tree_map_with_path(draw_one, shapes)
