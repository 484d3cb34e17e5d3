"""When checkpoints are saved: by steps and by the clock."""

import itertools

import jax
import pytest

from tests.workdir.test_checkpoint import options
from transformer_xl.workdir import save_policy


def test_saves_are_due_by_step_and_by_clock():
  now = [100.0]
  policy = save_policy.SavePolicy(
    options(every_steps=10, every_minutes=2.0), clock=lambda: now[0]
  )
  assert policy.is_due(10)
  assert not policy.is_due(11)
  now[0] += 119.0
  assert not policy.is_due(11)
  now[0] += 1.0
  assert policy.is_due(11)
  policy.saved()
  assert not policy.is_due(12)
  assert policy.is_due(20)


def test_a_clock_of_zero_minutes_never_saves():
  now = [0.0]
  policy = save_policy.SavePolicy(
    options(every_steps=10, every_minutes=0.0), clock=lambda: now[0]
  )
  now[0] = 1e9
  assert not policy.is_due(11)


class Store:
  """A coordination service, as JAX has one."""

  def __init__(self):
    self.values = {}

  def key_value_set(self, key, value):
    assert key not in self.values
    self.values[key] = value

  def key_value_dir_get(self, key):
    return [item for item in self.values.items() if item[0].startswith(key)]


@pytest.mark.parametrize("behind", [0, 1])
def test_several_processes_save_by_the_clock_of_the_first(monkeypatch, behind):
  """Nothing waits for devices, and no process is behind by two calls."""
  now, process, store = [0.0], [0], Store()
  monkeypatch.setattr(jax, "process_index", lambda: process[0])
  config = options(every_steps=50, every_minutes=1.0)
  monkeypatch.setattr(save_policy, "_instances", itertools.repeat(0))
  policies = [
    save_policy.SavePolicy(config, clock=clock, store=store)
    for clock in (lambda: now[0], lambda: -now[0])
  ]

  def saves(index, step):
    process[0] = index
    due = policies[index].is_due(step)
    if due:
      policies[index].saved()
    return due

  found = [], []
  for step in range(1, 120):
    now[0] = 10.0 * step
    for index, current in ((0, step), (1, step - behind)):
      if current and saves(index, current):
        found[index].append(current)
  # Six steps in each minute and two ahead, from each save or step 50 on.
  assert found[0][:8] == [8, 16, 24, 32, 40, 48, 50, 58]
  assert found[1] == [step for step in found[0] if step <= 119 - behind]
