"""A run whose terminal or reader goes away ends as any other."""

import os
import pty
import signal
import subprocess
import sys

import jax
import pytest

from tests import corpus
from tests import test_main
from tests.training import test_resume
from tests.training.runs import steps

pytestmark = pytest.mark.slow

# So many updates that the terminal goes while they are made.
STEPS = 1500
UPDATES = {
  "train.num_steps": STEPS,
  "train.log_every_steps": 20,
  "train.finish_with": ("eval", "generate"),
  "generate.prompt": "abc",
  "generate.num_tokens": 4,
  "checkpoint.every_steps": STEPS,
}
# The first terminal that the leader of a session opens becomes its own.
PROGRAM = """
import os, runpy
if os.isatty(0):
  os.open(os.ttyname(0), os.O_RDWR)
runpy.run_module("transformer_xl.main", run_name="__main__")
"""


def start(folder, streams):
  workdir = folder / "run"
  arguments = [
    *(test_main.BASE, f"--workdir={workdir}"),
    *corpus.config_flags(corpus.write(folder / "data"), **UPDATES),
  ]
  return subprocess.Popen(
    [sys.executable, "-c", PROGRAM, *arguments],
    cwd=test_main.ROOT,
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    },
    start_new_session=True,
    **streams,
  )


def check(process, folder):
  """The run and what follows it are complete."""
  try:
    assert process.wait(timeout=240) == 0
  finally:
    process.kill()
  assert steps(folder / "run") == [STEPS]
  results = {path.name for path in (folder / "run" / "results").iterdir()}
  assert {"eval_test.json", "generate.json"} <= results


@pytest.mark.rest
@pytest.mark.parametrize(
  "is_logged", [True, pytest.param(False, marks=pytest.mark.rest)]
)
def test_a_run_outlives_its_terminal(tmp_path, is_logged):
  """Where the log goes to a file, it says once what has happened."""
  terminal, end = pty.openpty()
  log = tmp_path / "run.log"
  streams = dict.fromkeys(("stdin", "stdout", "stderr"), end)
  with log.open("w") as file:
    if is_logged:
      streams["stderr"] = file
    process = start(tmp_path, streams)
  os.close(end)
  test_resume.wait_for_step(tmp_path / "run", 20, process)
  os.close(terminal)
  test_resume.wait_for_step(tmp_path / "run", 100, process)
  process.send_signal(signal.SIGHUP)  # As a shell adds.
  check(process, tmp_path)
  assert log.read_text().count("SIGHUP: the terminal is gone") == is_logged


@pytest.mark.rest
def test_a_run_outlives_the_reader_of_its_log(tmp_path):
  """As `2>&1 | tee log` that is ended with the connection."""
  reader, writer = os.pipe()
  process = start(tmp_path, dict.fromkeys(("stdout", "stderr"), writer))
  os.close(writer)
  test_resume.wait_for_step(tmp_path / "run", 20, process)
  os.close(reader)
  check(process, tmp_path)
