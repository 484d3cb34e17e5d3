"""A run of two processes lives through what an engine does to it."""

import json
import signal

import pytest

from tests import corpus
from tests.training import test_processes
from tests.training import test_resume
from transformer_xl import signals

pytestmark = [pytest.mark.rest, pytest.mark.slow]

STEPS = 600
UPDATES = {
  "train.num_steps": STEPS,
  "train.optimizer": "sgd",  # Adam magnifies rounding near gradients of 0.
  "train.log_every_steps": 25,
  "train.eval_every_steps": STEPS // 2,
  "checkpoint.every_steps": 50,
}


def engine(workdir, flags, preemptions):
  """Starts both processes until they end with 0 or 2, as engines do.

  Args:
    workdir: of the run.
    flags: of its command.
    preemptions: for each start that is preempted, the step after which it is,
      and which processes are told.

  Returns:
    The statuses of each start.
  """
  ends = []
  preemptions = iter(preemptions)
  while not ends or {*ends[-1]} == {signals.TERMINATED}:
    print(f"engine: start {len(ends) + 1}")
    both = test_processes.start_both(workdir, flags)
    try:
      preemption = next(preemptions, None)
      if preemption is not None:
        step, told = preemption
        test_resume.wait_for_step(workdir, step, both[0])
        print(f"engine: after step {step}, SIGTERM twice to {told}")
        for process in told:
          both[process].send_signal(signal.SIGTERM)
          both[process].send_signal(signal.SIGTERM)
      ends.append([process.wait(300) for process in both])
    finally:
      for process in both:
        process.kill()
    print(f"engine: they ended with {ends[-1]}")
  return ends


def test_two_preemptions_leave_one_run_with_each_line_once(tmp_path):
  flags = corpus.config_flags(corpus.write(tmp_path / "data"), **UPDATES)
  workdir = tmp_path / "run"
  # First the whole slice, then one of its hosts.
  ends = engine(workdir, flags, [(100, (0, 1)), (350, (1,))])
  said = (tmp_path / "run.log").read_text()
  print(said)
  stopped = signals.TERMINATED
  assert ends == [[stopped, stopped], [stopped, stopped], [0, 0]], said
  records = test_resume.lines(workdir)
  losses = [r["step"] for r in records if "loss" in r]
  assert losses == [*range(25, STEPS + 1, 25)]
  assert [r["step"] for r in records if "split" in r] == [STEPS // 2, STEPS]
  sessions = json.loads((workdir / "config.json").read_text())["sessions"]
  first, second, third = (session["step"] for session in sessions)
  assert first == 0
  assert second >= 100
  assert third >= 350
  for step in losses:
    for process in (0, 1):
      assert said.count(f"[{process}] step {step}/{STEPS} ") == 1
  for step in (second, third):
    assert said.count(f"Saved at step {step}; the same command") == 2


def test_a_command_that_is_refused_is_not_started_again(tmp_path):
  flags = corpus.config_flags(corpus.write(tmp_path / "data"), **UPDATES)
  ends = engine(tmp_path / "run", [*flags, "--config.train.num_steps=0"], [])
  assert ends == [[2, 2]]
