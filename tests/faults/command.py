"""A command line in a process that tells where it is, so that faults can hit.

Processes are forks of one that has imported everything, since imports take
longest; nothing has started JAX before. A fork knows nothing that a new
process does not know, apart from the modules.
"""

import errno
import functools
import os
import sys
import time
import traceback

import jax

from transformer_xl import errors
from transformer_xl import main
from transformer_xl.evaluation import evaluate
from transformer_xl.processes import others
from transformer_xl.training import hooks
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.training import resume
from transformer_xl.training import updates
from transformer_xl.workdir import checkpoint

# A process is in a stage from the call of its function on; the last one is
# where it was when it was hit.
STAGES = {
  "building": (loop, "open_stream"),
  "restoring": (resume, "start"),
  "reading": (updates._Reports, "finish"),
  "evaluating": (hooks.Evaluation, "__call__"),
  "saving": (checkpoint.Checkpoints, "save"),
  "closing": (checkpoint.Checkpoints, "close"),
  "following": (evaluate, "run"),  # As train.finish_with, if it is there.
}
# What a process raises where it is told to fail.
FAILURES = {
  "a mistake": errors.UserError("a file is missing: name another."),
  "a full disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
  "a bug": IndexError("list index out of range"),
}


def become(arguments, environment, log, tell, user, clock, fails, patience):
  """Runs a command line in this process, and ends it.

  Args:
    arguments: after the program's name.
    environment: to add.
    log: file that standard output and error are appended to.
    tell: a connection that gets the name of each stage.
    user: id to run as, or None.
    clock: None, or seconds that `time.time` is ahead from its call n on, by n.
    fails: None, or a stage, how often it was entered, and a kind of failure.
    patience: None, or the seconds that it waits for other processes to join.
  """
  descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
  os.dup2(descriptor, sys.stderr.fileno())
  os.dup2(descriptor, sys.stdout.fileno())
  os.environ.update(environment)
  jax.config.update("jax_platforms", "cpu")
  cache = environment["JAX_COMPILATION_CACHE_DIR"]
  jax.config.update("jax_compilation_cache_dir", cache)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  _mark_stages(_Teller(tell, fails))
  if patience is not None:
    others.JOIN_SECONDS = patience
  if clock:
    _turn_clock(clock)
  if user is not None:
    os.setgid(user)
    os.setuid(user)
  sys.argv = ["transformer_xl/main.py", *arguments]
  status = 70
  try:
    tell.send("starting")
    main.run()
  except SystemExit as error:
    status = error.code or 0
  except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    if others.is_one_of_several():
      os._exit(1)  # As `command_line` does.
  sys.stdout.flush()
  sys.stderr.flush()
  # JAX does so at the exit of an interpreter: the first process of several,
  # which all others need until their end, waits for them.
  try:
    others.leave()
    jax.distributed.shutdown()
  except Exception:
    traceback.print_exc()
    sys.stderr.flush()
  os._exit(status)


class _Teller:
  """Tells the stages, and fails in one of them."""

  def __init__(self, tell, fails):
    self._tell, self._fails = tell, fails
    self._told = []

  def send(self, stage):
    self._tell.send(stage)
    self._told.append(stage)
    if self._fails is not None:
      where, occurrence, kind = self._fails
      if stage == where and self._told.count(stage) == occurrence:
        raise FAILURES[kind]


def _mark_stages(tell):
  for stage, (owner, name) in STAGES.items():
    setattr(owner, name, _telling(getattr(owner, name), stage, tell))
  update = programs.update

  def compiled(recipe, mesh):
    run, first = update(recipe, mesh), ["compiling"]

    def call(*values):
      tell.send(first.pop() if first else "updating")
      return run(*values)

    return call

  programs.update = compiled


def _telling(function, stage, tell):
  @functools.wraps(function)
  def call(*values, **named):
    tell.send(stage)
    result = function(*values, **named)
    tell.send(f"after {stage}")  # A save goes on in the background then.
    return result

  return call


def _turn_clock(clock):
  now, calls = time.time, [0]

  def turned():
    calls[0] += 1
    ahead = [offset for call, offset in clock.items() if calls[0] >= call]
    return now() + (ahead[-1] if ahead else 0)

  time.time = turned
  time.time_ns = lambda: int(turned() * 1e9)
