"""Signals stop a run on a checkpoint, and what they prevent is made up for."""

import os
import signal
import subprocess
import sys
import time

import jax
import pytest

from tests import corpus
from tests import test_main
from tests.analysis import runs
from tests.training.runs import lines
from tests.training.runs import steps
from transformer_xl import errors
from transformer_xl import signals
from transformer_xl import storage
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.processes import others
from transformer_xl.training import loop
from transformer_xl.training import preemption
from transformer_xl.training import resume
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import metrics_log


def send_signal_at(step, monkeypatch):
  """Signals this process when the line of `step` is written."""
  write = metrics_log.Writer.write

  def written(self, record):
    write(self, record)
    if record["step"] == step and "split" not in record:
      signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(metrics_log.Writer, "write", written)


def test_a_signal_ends_the_run_after_its_chunk_with_a_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(
    data_dir, **{"train.eval_every_steps": 2, "checkpoint.every_steps": 12}
  )
  send_signal_at(4, monkeypatch)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path))
  assert steps(tmp_path)[-1] == 4
  assert [r["step"] for r in lines(tmp_path) if "split" in r] == [2]
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_polls_are_counted_through_all_runs_of_a_process(monkeypatch):
  """Processes stop at a number of polls that all of them will reach."""
  counts = []
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(
    others, "stops", lambda count: counts.append(count) or False
  )
  for _ in range(2):
    with preemption.StopSignal() as stop:
      assert not stop.poll()
      assert not stop.poll()
  assert counts == [*range(counts[0], counts[0] + 4)]


def test_a_signal_after_the_last_poll_is_left_to_what_answered_before():
  def run():
    with preemption.StopSignal() as stop:
      assert not stop.poll()
      signal.raise_signal(signal.SIGINT)

  # Workers of pytest ignore it.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      run()
  finally:
    signal.signal(signal.SIGINT, before)


def test_a_signal_in_the_last_chunk_is_no_leave_to_evaluate(
  data_dir, tmp_path, monkeypatch
):
  send_signal_at(12, monkeypatch)
  config = corpus.config(data_dir)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path))
  assert steps(tmp_path)[-1] == 12
  monkeypatch.undo()
  assert loop.train(config, str(tmp_path))


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("owner", "name"),
  [(checkpoint.Checkpoints, "wait"), (resume, "start")],
  ids=["in the last save", "when a finished run is read"],
)
def test_a_late_signal_is_no_leave_to_evaluate(
  data_dir, tmp_path, monkeypatch, caplog, owner, name
):
  config = corpus.config(data_dir)
  if name == "start":
    loop.train(config, str(tmp_path))
  usual = getattr(owner, name)

  def signalled(*arguments):
    signal.raise_signal(signal.SIGTERM)
    return usual(*arguments)

  monkeypatch.setattr(owner, name, signalled)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path))
  assert steps(tmp_path)[-1] == 12
  assert "Saved at step 12;" in caplog.messages[-1]
  monkeypatch.undo()
  assert loop.train(config, str(tmp_path))


def test_what_stopped_before_its_first_checkpoint_was_not_saved(
  data_dir, tmp_path, monkeypatch, caplog
):
  source = tmp_path / "source"
  runs.write(data_dir, source)
  score = evaluator.Evaluator.score_until

  def signalled(*arguments, **options):
    signal.raise_signal(signal.SIGTERM)
    return score(*arguments, **options)

  monkeypatch.setattr(evaluator.Evaluator, "score_until", signalled)
  tuned = {"train.init_from": str(source), "train.eval_every_steps": 4}
  with pytest.raises(errors.StoppedError):
    loop.train(corpus.config(data_dir, **tuned), str(tmp_path / "run"))
  assert not storage.names(str(tmp_path / "run" / "checkpoints"))
  assert "Saved at step" not in caplog.text
  assert "Stopped before the first checkpoint; the same" in caplog.text


def test_an_evaluation_that_a_signal_prevents_is_made_up_for(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(data_dir, **{"train.eval_every_steps": 4})
  loop.train(config, str(tmp_path / "whole"))
  send_signal_at(8, monkeypatch)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path / "parts"))
  monkeypatch.undo()
  assert [r["step"] for r in lines(tmp_path / "parts")][-1] == 8
  assert loop.train(config, str(tmp_path / "parts"))

  def losses(name):
    records = [r for r in lines(tmp_path / name) if "split" in r]
    return [(record["step"], record["nll"]) for record in records]

  assert losses("parts") == losses("whole")
  assert len(losses("whole")) == 3


def test_an_owed_evaluation_ranks_its_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  updates = {"train.eval_every_steps": 4, "checkpoint.keep_latest": 1}
  score_until = evaluator.Evaluator.score_until
  scores = iter([3.0, 2.0, 2.0, 2.5])

  def scored(self, params, *, should_stop):
    score = score_until(self, params, should_stop=should_stop)
    return score and score._replace(nll=next(scores) * score.num_tokens)

  config = corpus.config(data_dir, **updates)
  send_signal_at(8, monkeypatch)
  monkeypatch.setattr(evaluator.Evaluator, "score_until", scored)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path))
  monkeypatch.undo()
  monkeypatch.setattr(evaluator.Evaluator, "score_until", scored)
  # It is killed once more, between the checkpoint's loss and its metadata.
  write_text = storage.write_text

  def killed(path, text):
    if path.endswith("metadata"):
      raise KeyboardInterrupt
    write_text(path, text)

  with monkeypatch.context() as patch:
    patch.setattr(storage, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
      loop.train(config, str(tmp_path))
  assert loop.train(
    corpus.config(data_dir, **updates | {"train.num_steps": 8}), str(tmp_path)
  )
  evaluated = [(r["step"], r["nll"]) for r in lines(tmp_path) if "split" in r]
  assert evaluated == [(4, 3.0), (8, 2.0)]
  assert loop.train(config, str(tmp_path))
  assert next(scores, None) is None  # Step 8 was not scored again.
  best = corpus.config(data_dir, **updates | {"eval.checkpoint": "best"})
  assert evaluate.load(best, str(tmp_path)).step == 8
  assert steps(tmp_path) == [8, 12]


WAITING = """
import hashlib
from absl import logging
from transformer_xl.training import preemption

logging.use_absl_handler()
with preemption.StopSignal():
  print("waiting", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # As for the devices.
"""


def test_interrupts_are_answered_while_python_waits():
  """A second one within a second, as a wrapper passes on, is the first."""
  with subprocess.Popen(
    [sys.executable, "-c", WAITING],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      assert process.stdout.readline() == "waiting\n"
      process.send_signal(signal.SIGINT)
      lines = [process.stderr.readline() for _ in range(2)]
      assert "SIGINT: stopping after this chunk, with a checkpoint" in lines[1]
      assert "A second Ctrl-C ends at once" in lines[1]
      process.send_signal(signal.SIGINT)
      time.sleep(1.2)
      assert process.poll() is None
      process.send_signal(signal.SIGINT)
      (last,) = process.stderr.read().splitlines()
      assert last.startswith("error: interrupted twice;")
      assert process.wait() == signals.INTERRUPTED
    finally:
      process.kill()


# The command, which receives a signal twice when the line of step 4 is written.
SIGNALLED = """
import runpy, signal
from transformer_xl.workdir import metrics_log

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Whatever runs these tests.
write = metrics_log.Writer.write

def written(self, record):
  write(self, record)
  if record["step"] == 4:
    signal.raise_signal({number})
    signal.raise_signal({number})

metrics_log.Writer.write = written
runpy.run_module("transformer_xl.main", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ("number", "status"),
  [
    (signal.SIGTERM, 143),
    pytest.param(signal.SIGINT, 130, marks=pytest.mark.rest),
    # From an engine: this process has no terminal that it could lose.
    pytest.param(signal.SIGHUP, 143, marks=pytest.mark.rest),
  ],
)
def test_the_exit_status_says_that_the_run_is_not_finished(
  data_dir, tmp_path, number, status
):
  finished = subprocess.run(
    [
      *(sys.executable, "-c", SIGNALLED.format(number=int(number))),
      *(test_main.BASE, f"--workdir={tmp_path / 'run'}"),
      *corpus.config_flags(data_dir),
    ],
    capture_output=True,
    cwd=test_main.ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    start_new_session=True,
    text=True,
  )
  assert finished.returncode == status, finished.stderr
  saved = steps(tmp_path / "run")[-1]
  assert 4 <= saved < corpus.RUN["train.num_steps"]
  last = finished.stderr.splitlines()[-1]
  assert last.endswith(f"Saved at step {saved}; the same command continues.")


@pytest.mark.parametrize(("signal_at", "best"), [(2, "none"), (6, "4")])
def test_a_stopped_run_says_that_its_checkpoint_is_not_validated(
  data_dir, tmp_path, monkeypatch, caplog, signal_at, best
):
  config = corpus.config(data_dir, **{"train.eval_every_steps": 4})
  send_signal_at(signal_at, monkeypatch)
  with pytest.raises(errors.StoppedError):
    loop.train(config, str(tmp_path))
  newest = steps(tmp_path)[-1]
  assert (
    f"Checkpoint {newest} has not been validated. Until the run continues, "
    f"--config.eval.checkpoint=best reads {best}, and latest reads it."
  ) in caplog.messages
