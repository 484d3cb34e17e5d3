"""Dropout of updates whose lanes are read in parts, against all at once."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.data import segment as segment_lib
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

LANES, LENGTH, MEMORY = 8, 4, 8
CONFIG = {
  "train.batch_size": LANES,
  "train.segment_len": LENGTH,
  "train.mem_len": MEMORY,
  "train.optimizer": "sgd",
  "train.clip_norm": 0.0,
  "train.learning_rate": 0.5,
  "train.schedule": "constant",
}
STATES = {
  "model.dropout_rate": 0.2,
  "model.input_dropout_rate": 0.3,
  "model.output_dropout_rate": 0.1,
  "model.embedding_dropout_rate": 0.1,
  "model.weight_dropout_rate": 0.2,
}
ALL = STATES | {
  "model.projection_dropout_rate": 0.2,
  "model.attention_dropout_rate": 0.3,
}
LOCKED = {"model.locked_dropout": True}
RECURRENT = {**STATES, "train.mem_len": 1, "eval.mem_len": (1,)}
NETWORKS = {
  "relative": {**ALL, "model.attention": "xla"},
  "kernel": {**ALL, "model.attention": "pallas", "model.remat": "attention"},
  "relative_tied": {**ALL, **LOCKED, "model.encoding": "relative_tied"},
  "limits": {**ALL, "model.layers": ("attention:2", "attention")},
  "several": {**ALL, **LOCKED, "train.gradient_segments": 2},
  # Every other one drops the same in all tokens.
  **{
    name: {
      **(ALL if registry.mixers[name].attends else RECURRENT),
      **(LOCKED if index % 2 else {}),
      **kinds.model(name),
    }
    for index, name in enumerate(registry.mixers)
    if name != kinds.USUAL
  },
  "hybrid": {**ALL, "model.layers": (kinds.recurrent(), "attention")},
}
# Every network, and every number of parts with some of them.
CASES = [
  pytest.param(
    name, parts, marks=() if name == "relative" else pytest.mark.rest
  )
  for name, parts in zip(NETWORKS, itertools.cycle((2, 4)), strict=False)
]


@functools.cache
def update(name, parts):
  """A compiled update, as a function of the seed."""
  updates = CONFIG | NETWORKS[name] | {"train.accumulation_steps": parts}
  config = load.from_config_dict(tiny.config_dict(**updates))

  def run(carry, segment, seed):
    seeded = dataclasses.replace(config.recipe, seed=seed)
    return step_lib.train_step(carry, segment, recipe=seeded)

  return config, jax.jit(run)


def after(name, parts, *, seed=0):
  """The carry and the metrics after one update."""
  config, run = update(name, parts)
  state = jax.eval_shape(functools.partial(programs.init_state, config))
  state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
  state = state._replace(params=tiny.params(config.model))
  generator = np.random.default_rng(0)
  count = config.train.gradient_segments
  shape = (count, LANES, LENGTH) if count > 1 else (LANES, LENGTH)
  tokens = generator.integers(0, 23, (2, *shape)).astype(np.int32)
  segment = segment_lib.Segment(
    *tokens,
    generator.random(shape) < 0.1,
    (generator.random(shape) < 0.7).astype(np.float32),
  )
  carry = state, programs.init_memory(config.recipe)
  return run(carry, jax.tree.map(jnp.asarray, segment), seed)


@pytest.mark.rest
@pytest.mark.parametrize(("name", "parts"), CASES)
def test_a_lane_drops_the_same_in_every_part_of_an_update(name, parts):
  (state, memory), metrics = after(name, 1)
  (other, remembered), found = after(name, parts)
  # Sums in another order.
  comparison.assert_close(other.params, state.params, roundings=30)
  comparison.assert_close(remembered, memory, roundings=30)
  comparison.assert_close(found.sums.nll, metrics.sums.nll, roundings=30)
  # Other masks would lead elsewhere.
  (other, _), _ = after(name, parts, seed=1)
  assert comparison.distance(other.params, state.params) > 1e-3
