"""Averages of the parameters: over which updates, and since when."""

import functools

import jax
import numpy as np
import pytest

from tests import comparison
from tests.training import test_step
from transformer_xl.training import averaging
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib


def test_the_mean_is_over_all_updates_since_the_start():
  values = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
  mean = {"a": np.full(3, 100.0, np.float32)}  # Not to be seen in any mean.
  update = jax.jit(averaging.mean_since, static_argnums=0)
  for step in range(1, 10):
    mean = update(4, mean, {"a": values[step - 1]}, step)
    first = min(4, step - 1)  # Before the start: the parameters themselves.
    expected = values[first:step].mean(axis=0)
    comparison.assert_close(mean["a"], expected, roundings=30)


def test_the_moving_average_follows_the_parameters():
  config = test_step.make_config(**test_step.EVERYTHING)
  update = test_step.compiled(step_lib.train_step, config)
  state, memory = test_step.start(config)
  seen, weights = [], []
  for i in range(3):
    (state, memory), _ = update(
      state, memory, test_step.at(test_step.make_segments(), i), 0
    )
    seen.append(jax.device_get(state.params))
    weights = [*(0.75 * weight for weight in weights), 0.25]
    if i == 0:  # Nothing is left of the parameters before training.
      comparison.assert_close(state.average, state.params, roundings=30)
  weights = np.array(weights) / sum(weights)
  expected = jax.tree.map(
    lambda *leaves: sum(map(np.multiply, weights, leaves)), *seen
  )
  assert comparison.distance(state.average, state.params) > 1e-2
  comparison.assert_close(state.average, expected, roundings=30)


def test_the_average_starts_as_a_copy_and_not_as_the_same_buffers():
  config = test_step.make_config(**{"train.ema_decay": 0.9})
  state = jax.jit(functools.partial(programs.init_state, config))()
  test_step.assert_equal(state.average, state.params)
  leaves = map(jax.tree.leaves, (state.average, state.params))
  for one, other in zip(*leaves, strict=True):
    assert one.unsafe_buffer_pointer() != other.unsafe_buffer_pointer()


@pytest.mark.rest
def test_the_mean_of_the_parameters_begins_after_its_first_step():
  config = test_step.make_config(**{"train.asgd_start_step": 2})
  update = test_step.compiled(step_lib.train_step, config)
  state, memory = test_step.start(config)
  seen = []
  for i in range(4):
    (state, memory), _ = update(
      state, memory, test_step.at(test_step.make_segments(), i), 0
    )
    seen.append(state.params)
    if i < 2:
      test_step.assert_equal(state.average, state.params)
  mean = jax.tree.map(lambda *leaves: sum(leaves) / 2, *seen[2:])
  assert comparison.distance(mean, state.params) > 1e-3
  comparison.assert_close(state.average, mean, roundings=30)
