"""Ctrl-C ends every command with one line, whatever it is doing."""

import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest

from tests import corpus
from tests import test_main
from tests.analysis import runs
from transformer_xl import signals

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
# A module that takes long to import, before the command's own code is there.
SLOW_MODULE = 'import time\nprint("here", flush=True)\ntime.sleep(60)\n'
# The command, which says when it scores and then waits as for the devices.
SCORING = """
import hashlib, runpy
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator

score_until = evaluator.Evaluator.score_until

def wait(*arguments, **options):
  score_until(*arguments, **options)
  print("here", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

evaluator.Evaluator.score_until = wait
runpy.run_module("transformer_xl.main", run_name="__main__")
"""
# JAX, too, has a callback at garbage collection. Python drops its exceptions.
COLLECTING = """
import gc, time
from transformer_xl import command_line

def wait(phase, about):
  print("here", flush=True)
  time.sleep(1)

def main(argv):
  gc.callbacks.append(wait)
  gc.collect()
  gc.callbacks.remove(wait)
  {then}
  time.sleep(60)

command_line.run(main)
"""


def _receive_interrupts():
  """Undoes that a shell lets its commands in the background ignore them."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(program, flags=(), number=signal.SIGINT, **environment):
  """What a command says that is stopped as soon as it says "here"."""
  with subprocess.Popen(
    [sys.executable, *program, *flags],
    cwd=ROOT,
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }
    | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    preexec_fn=_receive_interrupts,
  ) as process:
    try:
      assert process.stdout.readline() == "here\n"
      process.send_signal(number)
      _, errors = process.communicate(timeout=10)
    finally:
      process.kill()
  assert process.returncode == signals.stopped_status(number), errors
  return errors.splitlines()


LAST = f"error: {signals.INTERRUPTION}"


@pytest.mark.parametrize(
  "module",
  [
    "transformer_xl.main",
    "data_prep.main",
    "transformer_xl.importers.main",
  ],
)
def test_ctrl_c_during_the_imports_is_one_line(tmp_path, module):
  (tmp_path / "numpy.py").write_text(SLOW_MODULE)
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  assert interrupted(["-m", module], PYTHONPATH=path) == [LAST]


def test_sigterm_before_training_has_the_status_that_engines_restart(tmp_path):
  """Python alone would ignore it as process 1 of a container."""
  (tmp_path / "numpy.py").write_text(SLOW_MODULE)
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  command = ["-m", "transformer_xl.main"]
  lines = interrupted(command, number=signal.SIGTERM, PYTHONPATH=path)
  assert lines == [LAST]
  assert signals.stopped_status(signal.SIGTERM) == 143


@pytest.mark.parametrize(
  "then",
  [
    "pass",
    # No other thread can send anything until this is done and sleep begins.
    "sum(range(3 * 10**7))",
  ],
)
def test_ctrl_c_in_a_callback_that_loses_exceptions_is_one_line(then):
  assert interrupted(["-c", COLLECTING.format(then=then)]) == [LAST]


def test_ctrl_c_in_an_evaluation_is_one_line_and_keeps_results(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  workdir = tmp_path / "run"
  runs.write(data_dir, workdir)
  results = workdir / "results"
  results.mkdir()
  (results / "eval_test.json").write_text("of the call before")
  flags = ["--mode=eval", f"--config=experiments/saved.py:{workdir}"]
  *log, last = interrupted(["-c", SCORING], flags)
  assert last == LAST
  assert all(test_main.LOG_LINE.match(line) for line in log), log
  assert [path.name for path in results.iterdir()] == ["eval_test.json"]
  assert (results / "eval_test.json").read_text() == "of the call before"
