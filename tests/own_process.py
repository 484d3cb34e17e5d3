"""Modules of the tests that need a process of their own, as forced devices do.

They are run as `python -m tests.MODULE FOLDER ...`, on the CPU.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax

ROOT = pathlib.Path(__file__).parents[1]


def free_port() -> int:
  """A port of this machine that nobody listens at."""
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


def finish(module, folder, *arguments):
  """Runs a module to its end and checks its status."""
  process = subprocess.run(
    [sys.executable, "-m", f"tests.{module}", str(folder), *arguments],
    cwd=ROOT,
    env={
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
      # Tiny programs are kept, too, however fast they compile.
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    },
    capture_output=True,
    text=True,
    check=False,
  )
  logs = "".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
  assert process.returncode == 0, process.stderr + logs


def result(module, folder, *arguments):
  """What a module writes to `result.json` in its folder."""
  finish(module, folder, *arguments)
  return json.loads((folder / "result.json").read_text())
