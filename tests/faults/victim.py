"""Starts command lines, hits them, and compares with the uninterrupted run."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import time

import jax
import numpy as np

from tests import corpus
from tests.training import test_resume
from transformer_xl.workdir import checkpoint_items

STEPS, CHUNK, EVERY = 48, 2, 8
UPDATES = {
  **test_resume.EVERYTHING,
  "model.num_layers": 1,
  "train.accumulation_steps": 1,
  "train.num_steps": STEPS,
  "train.segments_per_call": CHUNK,
  "train.log_every_steps": 4,
  "train.eval_every_steps": 16,
  "checkpoint.every_steps": EVERY,
}


def _become(*arguments):
  # Imported there only: its flags are also those of the importers.
  from tests.faults import command

  command.become(*arguments)


class Victim:
  """A process that runs the command line, and where it is."""

  def __init__(
    self,
    workdir,
    flags,
    *,
    cache,
    user=None,
    clock=None,
    fails=None,
    patience=None,
    log=None,
  ):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.command", __name__])
    self.log = pathlib.Path(log or f"{workdir}.log")
    self._from = self.log.stat().st_size if self.log.exists() else 0
    self._ear, mouth = context.Pipe(duplex=False)
    arguments = ["--config=experiments/base.py", f"--workdir={workdir}", *flags]
    # That of the server which forks is older.
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    self.process = context.Process(
      target=_become,
      args=(
        *(arguments, environment, str(self.log), mouth),
        *(user, clock, fails, patience),
      ),
    )
    self.stages = []
    self.process.start()
    mouth.close()

  def wait_for(self, stage, occurrence=1, *, seconds=300):
    """Returns when it enters a stage for the nth time; False if it ended."""
    limit = time.monotonic() + seconds
    while self.stages.count(stage) < occurrence:
      assert time.monotonic() < limit, self.says()
      try:
        if self._ear.poll(1.0):
          self.stages.append(self._ear.recv())
      except EOFError:
        return False
    return True

  def hit(self, number):
    """Sends a signal; what it had still said is in `stages`."""
    with contextlib.suppress(ProcessLookupError):
      os.kill(self.process.pid, number)

  def end(self, *, seconds=300):
    """Waits for its end and returns the exit status."""
    self.process.join(seconds)
    if self.process.exitcode is None:
      self.process.kill()
      raise AssertionError(f"it did not end: {self.says()}")
    with contextlib.suppress(EOFError):
      while self._ear.poll():
        self.stages.append(self._ear.recv())
    return self.process.exitcode

  def says(self):
    """What this process wrote."""
    with open(self.log, "rb") as file:
      file.seek(self._from)
      return file.read().decode()


class Bench:
  """One uninterrupted run, and all that is compared with it."""

  def __init__(self, folder, updates=UPDATES):
    self.folder, self.updates = folder, updates
    self.cache = folder / "cache"
    self.data_dir = corpus.write(folder / "data")
    self.flags = corpus.config_flags(self.data_dir, **updates)
    self.config = corpus.config(self.data_dir, **updates)
    self.whole = folder / "whole"
    self.finish(self.whole)  # It compiles.
    self.lines = test_resume.lines(self.whole)
    self.newest = test_resume.newest(self.whole, self.config)
    assert int(self.newest.state.step) == updates["train.num_steps"]

  def start(self, workdir, *more, **options):
    options = {"cache": self.cache} | options
    return Victim(workdir, [*self.flags, *more], **options)

  def finish(self, workdir, **options):
    """The same command again, to its end; returns what it says."""
    victim = self.start(workdir, **options)
    assert victim.end() == 0, victim.says()
    return victim.says()

  def assert_continues(self, workdir, *, after=None, **options):
    """The same command goes on where a checkpoint is, as if nothing had been.

    Args:
      workdir: of the run that was hit.
      after: step to go on after; None: the newest that is saved.
      options: of the process.
    """
    before = lines_so_far(workdir)
    assert before == self.lines[: len(before)]
    if after is None:
      after = max(steps(workdir), default=0)
    says = self.finish(workdir, **options)
    expected = f"Resuming after step {after}." if after else "Starting with"
    assert expected in says, says
    self.assert_whole(workdir)

  def assert_whole(self, workdir):
    assert test_resume.lines(workdir) == self.lines
    newest = test_resume.newest(workdir, self.config)
    assert newest.metadata == self.newest.metadata
    jax.tree.map(np.testing.assert_array_equal, newest[:2], self.newest[:2])


def steps(workdir):
  """Steps of the checkpoints that are completely written."""
  folder = pathlib.Path(workdir) / checkpoint_items.DIRECTORY
  if not folder.exists():
    return []
  return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def is_being_saved(workdir):
  """Whether a checkpoint was left half written."""
  folder = pathlib.Path(workdir) / checkpoint_items.DIRECTORY
  return any("tmp" in path.name for path in folder.glob("*"))


def lines_so_far(workdir):
  """The whole lines of the log, without timing."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  if not path.exists():
    return []
  lines = []
  for line in path.read_text().splitlines():
    with contextlib.suppress(json.JSONDecodeError):
      record = json.loads(line)
      for name in test_resume.TIMING:
        record.pop(name, None)
      lines.append(record)
  return lines


SIGKILL, SIGTERM, SIGINT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
