"""Averages of the parameters: over which updates, and since when."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from tests.training import test_step
from transformer_xl.config import load
from transformer_xl.training import averaging
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import run_state


def train_config(**updates):
  updates = {f"train.{name}": value for name, value in updates.items()}
  return load.from_config_dict(tiny.config_dict(**updates)).train


def starts(losses, patience, *, step=1, start=run_state.NEVER, before=()):
  """Where averaging starts after each of some losses, one a step."""
  found = []
  for index, nll in enumerate(losses):
    older = (*before, *losses[:index])
    start = averaging.start_after_loss(
      start, older, nll, step=step + index, patience=patience
    )
    found.append(start)
  return found


def test_the_mean_is_over_all_updates_since_the_start():
  values = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
  mean = {"a": np.full(3, 100.0, np.float32)}  # Not to be seen in any mean.
  update = jax.jit(averaging.mean_since)
  for step in range(1, 10):
    mean = update(4, mean, {"a": values[step - 1]}, step)
    first = min(4, step - 1)  # Before the start: the parameters themselves.
    expected = values[first:step].mean(axis=0)
    comparison.assert_close(mean["a"], expected, roundings=30)


@pytest.mark.parametrize(
  ("losses", "patience", "starts_at"),
  [
    ([5, 4, 3, 2, 1], 2, None),
    # 3.5 is above the 3 of more than one evaluation before it.
    ([5, 3, 3.2, 3.5], 1, 4),
    # The best one has to be three evaluations old.
    ([5, 3, 2, 2.5, 2.6, 2.7], 2, 6),
    ([5, 3, 2, 2.5, 1.9], 2, None),
    ([5, 6, 7], 2, None),
    ([5, 6, 7, 8], 3, None),  # Four losses, none of them old enough.
    ([5, 6, 7, 8, 9], 3, 5),
  ],
)
def test_averaging_starts_when_validation_no_longer_improves(
  losses, patience, starts_at
):
  found = starts(losses, patience)
  steps = [at for at, start in enumerate(found, start=1) if start == at]
  assert steps == ([starts_at] if starts_at else [])
  assert found[-1] == (starts_at or run_state.NEVER)


def test_averaging_starts_only_once():
  never = run_state.NEVER
  assert starts((1, 2, 3, 4), 1) == [never, never, 3, 3]
  assert starts((1, 2, 3, 4), 0) == [never] * 4


def test_the_start_survives_a_restart():
  whole = starts((3.0, 2.0, 2.5, 2.6), 1)
  assert whole[1:] == [run_state.NEVER, run_state.NEVER, 4]
  state = run_state.TrainState(
    np.int32(2), {}, {}, {}, jax.numpy.int32(whole[1])
  )
  metadata = run_state.Metadata(validation_losses=(3.0, 2.0))
  stored = run_state.to_json(run_state.RunState(state, None, metadata))
  again, start = run_state.from_json(json.loads(json.dumps(stored)))
  assert again == metadata
  start = averaging.resumed_start(train_config(asgd_patience=1), start, step=2)
  losses = again.validation_losses
  assert starts((2.5, 2.6), 1, step=3, start=start, before=losses) == whole[2:]


def restored(saved_step, step, **updates):
  """Where the mean starts in a run that goes on at `step`."""
  return averaging.resumed_start(train_config(**updates), saved_step, step=step)


def test_a_run_that_had_no_mean_starts_one_where_it_is_told_to():
  # Runs without a mean save that theirs never starts.
  never = run_state.NEVER
  assert restored(never, 300, asgd_start_step=10) == 300
  assert restored(never, 300, asgd_start_step=300) == 300
  assert restored(never, 300, asgd_start_step=400) == 400
  assert restored(never, 300, asgd_patience=2) == run_state.NEVER
  _, absent = run_state.from_json({})
  assert absent == never


def test_a_mean_that_was_begun_goes_on():
  assert restored(100, 300, asgd_start_step=100) == 100
  assert restored(100, 300, asgd_start_step=50) == 100
  assert restored(100, 300, asgd_patience=2) == 100


def test_a_mean_begins_anew_at_a_later_step_and_ends_with_its_option():
  assert restored(100, 300, asgd_start_step=400) == 400
  assert restored(400, 300, asgd_start_step=500) == 500
  assert restored(400, 300, asgd_patience=2) == run_state.NEVER
  assert restored(100, 300) == run_state.NEVER


def test_the_moving_average_follows_the_parameters():
  config = test_step.make_config(**test_step.EVERYTHING)
  update = test_step.compiled(step_lib.train_segment, config)
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
  assert test_step.distance(state.average, state.params) > 1e-2
  comparison.assert_close(state.average, expected, roundings=30)


def test_the_average_starts_as_a_copy_and_not_as_the_same_buffers():
  config = test_step.make_config(**{"train.ema_decay": 0.9})
  state = jax.jit(functools.partial(programs.init_state, config))()
  test_step.assert_equal(state.average, state.params)
  leaves = map(jax.tree.leaves, (state.average, state.params))
  for one, other in zip(*leaves, strict=True):
    assert one.unsafe_buffer_pointer() != other.unsafe_buffer_pointer()


def test_the_mean_of_the_parameters_begins_after_its_first_step():
  config = test_step.make_config(**{"train.asgd_start_step": 2})
  update = test_step.compiled(step_lib.train_segment, config)
  state, memory = test_step.start(config)
  state = state._replace(average_start=jnp.int32(2))
  seen = []
  for i in range(4):
    (state, memory), _ = update(
      state, memory, test_step.at(test_step.make_segments(), i), 0
    )
    seen.append(state.params)
    if i < 2:
      test_step.assert_equal(state.average, state.params)
  mean = jax.tree.map(lambda *leaves: sum(leaves) / 2, *seen[2:])
  assert test_step.distance(mean, state.params) > 1e-3
  comparison.assert_close(state.average, mean, roundings=30)
