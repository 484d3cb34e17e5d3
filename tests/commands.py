"""Runs command lines in forks of one process, which has imported their modules.

python -m tests.commands MODULE ... < GROUPS > RESULTS, both JSON: the cases of
a group run at the same time. A case has `arguments` and, unless they are
ORDINARY, the `module` that takes them, an `environment`, the `folder` to run
in, the `num_hosts` that JAX finds, the bytes that a file may have
(`most_bytes`), and whether `nobody_reads` standard output or it is kept
`apart`. A result has `status`, `stdout`, which is empty unless it is kept
apart, and `stderr`, which includes the rest of standard output if somebody
reads.
"""

import contextlib
import importlib
import json
import os
import pathlib
import resource
import runpy
import subprocess
import sys
import tempfile
import traceback
from typing import Any

import jax

from transformer_xl import command_line
from transformer_xl.data_prep.synthetic import task

MAIN = "transformer_xl.main"
MODES = (
  *(MAIN, "transformer_xl.training.loop"),
  *("transformer_xl.evaluation.evaluate", "transformer_xl.text.generate"),
  "transformer_xl.text.score",
)
# What a case has beside its arguments, unless it says otherwise.
ORDINARY = {
  **{"module": MAIN, "environment": {}, "folder": None, "num_hosts": 1},
  **{"most_bytes": None, "nobody_reads": False, "apart": False},
}


def finished(
  groups: list[list[dict[str, Any]]], modules: tuple[str, ...] = MODES
) -> list[list[dict[str, Any]]]:
  """The results of groups of cases, for whose commands modules are imported."""
  process = subprocess.run(
    [sys.executable, "-m", "tests.commands", *modules],
    cwd=pathlib.Path(__file__).parents[1],
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      # Tiny programs are kept, too, however fast they compile.
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    },
    input=json.dumps(groups),
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return json.loads(process.stdout)


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Runs command lines at the same time, each as a shell would."""
  with contextlib.ExitStack() as stack:
    logs = [
      [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
      for _ in cases
    ]
    children = [_start(*pair) for pair in zip(cases, logs, strict=True)]
    return [_finish(*pair) for pair in zip(children, logs, strict=True)]


def _start(case, logs):
  child = os.fork()
  if child == 0:
    stdout, stderr = logs
    _become(ORDINARY | case, stdout.fileno(), stderr.fileno())
  return child


def _finish(child, logs):
  _, status = os.waitpid(child, 0)
  for log in logs:
    log.seek(0)
  stdout, stderr = (log.read().decode() for log in logs)
  status = os.waitstatus_to_exitcode(status)
  return {"status": status, "stdout": stdout, "stderr": stderr}


def _become(case, stdout, stderr):
  os.dup2(stderr, sys.stderr.fileno())
  os.dup2(stdout if case["apart"] else stderr, sys.stdout.fileno())
  if case["nobody_reads"]:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stdout.fileno())
  if case["num_hosts"] > 1:
    jax.process_count = lambda: case["num_hosts"]
  if case["most_bytes"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (case["most_bytes"],) * 2)
  os.environ.update(case["environment"])
  os.chdir(case["folder"] or os.curdir)
  module = case["module"]
  sys.argv = [f"{module.replace('.', '/')}.py", *case["arguments"]]
  sys.orig_argv = ["python", "-m", module, *case["arguments"]]
  status = 0
  try:
    if module in sys.modules:
      sys.modules[module].run()
    else:  # Its flags may be those of another module.
      runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit as error:
    status = error.code or 0
  except BaseException:
    traceback.print_exc()
    status = 70
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


if __name__ == "__main__":
  for name in sys.argv[1:]:
    importlib.import_module(name)
  task.NUM_TOKENS = 20_000  # Studies prepare texts, of which none is learnt.
  command_line.require_flags_of_xla()  # Once for all forks.
  print(json.dumps([run(group) for group in json.load(sys.stdin)]))
