"""The mean of the parameters: over which updates, and since when."""

import jax
import numpy as np
import pytest

from tests import tiny
from transformer_xl.config import load
from transformer_xl.training import averaging


def start(**updates):
  updates = {f"train.{name}": value for name, value in updates.items()}
  config = tiny.config_dict(**updates)
  return averaging.Start(load.from_config_dict(config).train)


def test_the_mean_is_over_all_updates_since_the_start():
  values = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
  mean = {"a": np.full(3, 100.0, np.float32)}  # Not to be seen in any mean.
  update = jax.jit(averaging.mean_since)
  for step in range(1, 10):
    mean = update(4, mean, {"a": values[step - 1]}, step)
    first = min(4, step - 1)  # Before the start: the parameters themselves.
    expected = values[first:step].mean(axis=0)
    np.testing.assert_allclose(mean["a"], expected, rtol=1e-5, atol=1e-6)


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
  ],
)
def test_averaging_starts_when_validation_no_longer_improves(
  losses, patience, starts_at
):
  begin = start(asgd_patience=patience)
  started = [begin.add(nll, step=at) for at, nll in enumerate(losses, start=1)]
  steps = [at for at, yes in enumerate(started, start=1) if yes]
  assert steps == ([starts_at] if starts_at else [])
  assert begin.step == (starts_at or averaging.NEVER)


def test_averaging_starts_only_once():
  begin = start(asgd_patience=1)
  started = [begin.add(nll, step=nll) for nll in (1, 2, 3, 4)]
  assert started == [False, False, True, False]


def test_the_start_survives_a_restart():
  begin, again = start(asgd_patience=1), start(asgd_patience=1)
  for step, nll in ((1, 3.0), (2, 2.0)):
    begin.add(nll, step=step)
  again.restore(begin.saved(), step=2)
  for one in (begin, again):
    assert [one.add(nll, step=nll) for nll in (2.5, 2.6)] == [False, True]
  assert again.saved() == begin.saved()


def restored(saved_step, step, **updates):
  """Where the mean starts in a run that goes on at `step`."""
  begin = start(**updates)
  begin.restore({"step": saved_step, "losses": []}, step=step)
  return begin.step


def test_a_run_that_had_no_mean_starts_one_where_it_is_told_to():
  begin = start(asgd_start_step=10)
  begin.restore(None, step=300)
  assert begin.step == 300
  # Runs without a mean save that theirs never starts.
  never = start().saved()["step"]
  assert restored(never, 300, asgd_start_step=10) == 300
  assert restored(never, 300, asgd_start_step=400) == 400
  assert restored(never, 300, asgd_patience=2) == averaging.NEVER


def test_a_mean_that_was_begun_goes_on():
  assert restored(100, 300, asgd_start_step=100) == 100
  assert restored(100, 300, asgd_start_step=50) == 100
  assert restored(100, 300, asgd_patience=2) == 100


def test_a_mean_begins_anew_at_a_later_step_and_ends_with_its_option():
  assert restored(100, 300, asgd_start_step=400) == 400
  assert restored(400, 300, asgd_start_step=500) == 500
  assert restored(400, 300, asgd_patience=2) == averaging.NEVER
  assert restored(100, 300) == averaging.NEVER
