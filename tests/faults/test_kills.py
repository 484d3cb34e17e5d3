"""Killed or stopped at any moment, a run goes on as if it had not been."""

import random
import signal
import time

import pytest

from tests.faults import victim
from transformer_xl import signals

pytestmark = pytest.mark.slow

# How often a stage is entered before it is hit, at most.
STAGES = {
  "starting": 1,
  "building": 1,
  "restoring": 1,
  "compiling": 1,
  "reading": 20,
  "evaluating": 3,
  "saving": 6,
  "after saving": 6,
  "closing": 1,
}
KILLS = {
  "starting": 3,
  "building": 3,
  "restoring": 3,
  "compiling": 5,
  "reading": 8,
  "evaluating": 8,
  "saving": 6,
  "after saving": 12,
  "closing": 2,
}
SIGNALS = {
  "building": 1,
  "compiling": 2,
  "reading": 2,
  "evaluating": 2,
  "after saving": 1,
}
# Seconds within which a stage is hit: about as long as it takes.
LONGEST = {"starting": 0.5, "compiling": 0.5, "after saving": 0.15}


def moments(counts, seed):
  """So many moments in each stage: a stage, its occurrence and a delay."""
  generator = random.Random(seed)
  for stage, count in counts.items():
    for _ in range(count):
      occurrence = 1 + generator.randrange(STAGES[stage])
      delay = generator.random() * LONGEST.get(stage, 0.05)
      yield pytest.param(
        stage, occurrence, delay, id=f"{stage} {occurrence} {delay:.3f}"
      )


def hit(bench, workdir, stage, occurrence, delay, number):
  """Starts a run, hits it there, and returns the process that ended."""
  process = bench.start(workdir)
  assert process.wait_for(stage, occurrence), process.says()
  time.sleep(delay)
  process.hit(number)
  return process


@pytest.mark.faults
@pytest.mark.parametrize(
  ("stage", "occurrence", "delay"), list(moments(KILLS, seed=0))
)
def test_kill_9(bench, tmp_path, trying, stage, occurrence, delay):
  kill_and_continue(bench, tmp_path / "run", trying, stage, occurrence, delay)


def kill_and_continue(bench, workdir, trying, stage, occurrence, delay):
  process = hit(bench, workdir, stage, occurrence, delay, victim.SIGKILL)
  status = process.end()
  assert status in (-victim.SIGKILL, 0)  # 0: it had ended before.
  where = process.stages[-1].removeprefix("after ")
  if victim.is_being_saved(workdir):
    where = "a checkpoint being written"
  with trying(f"kill -9: {where}"):
    bench.assert_continues(workdir)


@pytest.mark.rest
@pytest.mark.parametrize(
  ("stage", "occurrence", "delay"),
  [("after saving", 2, 0.01), ("evaluating", 2, 0.0)],
)
def test_kill_9_at_two_moments(
  bench, tmp_path, trying, stage, occurrence, delay
):
  kill_and_continue(bench, tmp_path / "run", trying, stage, occurrence, delay)


@pytest.mark.faults
@pytest.mark.parametrize("number", [victim.SIGTERM, victim.SIGINT])
@pytest.mark.parametrize(
  ("stage", "occurrence", "delay"), list(moments(SIGNALS, seed=1))
)
def test_signals(bench, tmp_path, trying, number, stage, occurrence, delay):
  workdir, name = tmp_path / "run", signal.Signals(number).name
  process = hit(bench, workdir, stage, occurrence, delay, number)
  with trying(f"{name}: {stage.removeprefix('after ')}"):
    assert process.end() == signals.stopped_status(number), process.says()
    assert f"{name}: stopping after this chunk" in process.says()
    # All that was done is saved.
    done = [line["step"] for line in victim.lines_so_far(workdir)]
    (*_, saved) = victim.steps(workdir)
    assert saved >= max(done, default=victim.CHUNK)
    bench.assert_continues(workdir, after=saved)


@pytest.mark.faults
def test_killed_again_and_again(bench, tmp_path, trying):
  """No run lives for longer than one save."""
  workdir, last = tmp_path / "run", 0
  with trying("kill -9: after each save, six times in a row"):
    for _ in range(victim.STEPS // victim.EVERY):
      process = bench.start(workdir)
      process.wait_for("after saving")
      time.sleep(0.5)
      process.hit(victim.SIGKILL)
      process.end()
      assert max(victim.steps(workdir), default=0) >= last
      last = max(victim.steps(workdir), default=0)
    bench.assert_continues(workdir)
