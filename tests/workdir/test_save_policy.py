"""When checkpoints are saved: by steps and by the clock."""

import os
import subprocess
import sys

import pytest

from tests import own_process
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


# One of two processes; its minutes pass ten times as fast as the other's.
TOGETHER = """
import sys
import types

import jax

from transformer_xl.workdir import save_policy

index, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(address, 2, index)
now, saved = [0.0], []
config = types.SimpleNamespace(every_steps=50, every_minutes=1.0)
policy = save_policy.SavePolicy(config, clock=lambda: now[0])
for step in range(1, 60):
  now[0] = step * (10.0 if index else 1.0)
  if policy.is_due(step):
    saved.append(step)
    policy.saved()
jax.distributed.shutdown()
print(saved)
"""


@pytest.mark.rest
@pytest.mark.slow
def test_processes_save_together_whose_clocks_differ():
  address = f"localhost:{own_process.free_port()}"
  both = [
    subprocess.Popen(
      [sys.executable, "-c", TOGETHER, str(index), address],
      cwd=own_process.ROOT,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
      stdout=subprocess.PIPE,
      text=True,
    )
    for index in range(2)
  ]
  found = [process.communicate()[0].splitlines()[-1] for process in both]
  # Six steps are a minute of the second, and one more brings the answer.
  assert found[0] == "[7, 14, 21, 28, 35, 42, 49, 50, 57]"
  assert found[1] == found[0]
