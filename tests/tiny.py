"""Configurations, parameters and inputs small enough for a test."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from tests import kinds
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.experiments import base
from transformer_xl.model import network

LANES, SEGMENT, MEMORY = 2, 3, 4
MODEL = {
  "vocab_size": 23,
  "num_layers": 2,
  "model_dim": 8,
  "num_heads": 2,
  "head_dim": 4,
  "ff_dim": 12,
  "dropout_rate": 0.0,
  "scan_unroll": 1,  # It compiles faster.
  **{
    field: value
    for name in registry.mixers
    for field, value in kinds.own_fields(name).items()
  },
}

# For what is compared to the bit: with the loops that tests/conftest.py prefers
# two programs may round the same sums in other places.
TO_THE_BIT = (
  {"xla_cpu_use_fusion_emitters": True}
  if "xla_cpu_use_fusion_emitters" in os.environ.get("XLA_FLAGS", "")
  else {}
)


def config_dict(**updates: Any) -> ml_collections.ConfigDict:
  """The base experiment with a tiny model; updates as `{"model.ff_dim": 4}`."""
  config = base.get_config()
  sizes = {f"model.{name}": value for name, value in MODEL.items()}
  config.update_from_flattened_dict(sizes | updates)
  return config


def model_config(**updates: Any) -> schema.ModelConfig:
  """A tiny model; updates name its fields, such as `compressive.rate`."""
  config = config_dict(
    **{f"model.{name}": value for name, value in updates.items()},
    **{"train.gradient_segments": 2},  # Memory tokens are trained by these.
  )
  return load.from_config_dict(config).model


def params(config: schema.ModelConfig, *, seed: int = 0) -> dict:
  """The model's, as `draw` makes them."""
  return _params(config, seed)


@functools.cache
def _params(config: schema.ModelConfig, seed: int) -> dict:
  return draw(network.abstract_params(config), seed=seed)


def in_places(params: dict, count: int) -> dict:
  """Parameters of equal layers as those of a pattern of `count` such layers."""
  layers = {
    str(place): jax.tree.map(
      lambda leaf, place=place: leaf[place::count], params["layers"]["0"]
    )
    for place in range(count)
  }
  return params | {"layers": layers}


def draw(shapes: dict, *, seed: int = 0) -> dict:
  """Parameters of which none is 0, 1 or small enough to be overlooked."""
  generator = np.random.default_rng(seed)

  def draw_one(path, leaf):
    centre = 1.0 if path[-1].key == "scale" else 0.0
    values = centre + 0.4 * generator.standard_normal(leaf.shape)
    return jnp.asarray(values, leaf.dtype)

  return jax.tree_util.tree_map_with_path(draw_one, shapes)


def inputs(config: schema.ModelConfig, *, mem_len: int = MEMORY):
  """Tokens, the ones after them, and a full memory."""
  tokens = np.random.default_rng(3).integers(
    config.vocab_size, size=(LANES, SEGMENT + 1), dtype=np.int32
  )
  memory = network.empty_state(
    config, batch_size=LANES, mem_len=mem_len, step_len=SEGMENT
  )
  # Something to remember, so that the way memory takes is tested, too.
  generator = np.random.default_rng(4)
  layers = jax.tree.map(
    lambda empty: jnp.asarray(
      generator.standard_normal(empty.shape), empty.dtype
    ),
    memory.layers,
  )
  length = jnp.full((LANES,), mem_len, jnp.int32)
  memory = network.State(layers, length)
  return jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:]), memory


@functools.partial(jax.jit, static_argnames=("config", "method"))
def apply(config, params, *args, key=None, method="__call__"):
  """With dropout if there is a key."""
  model = network.Network(config)
  options = {}
  if key is not None:  # This kind compiles in half the time.
    rngs = {"dropout": jax.random.key(key, impl="rbg")}
    options = {"rngs": rngs, "dropout_lanes": jnp.arange(len(args[0]))}
  return model.apply({"params": params}, *args, method=method, **options)


def mean_nll(config: schema.ModelConfig, params: dict, *, key=None):
  """The mean loss of one segment; with dropout if there is a key."""
  tokens, targets, memory = inputs(config)
  losses, _ = apply(
    config, params, tokens, targets, memory, key=key, method="nll"
  )
  return jnp.mean(losses)
