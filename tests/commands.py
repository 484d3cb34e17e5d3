"""Runs command lines in forks of one process, which has imported the modes.

python -m tests.commands < GROUPS > RESULTS, both JSON: the cases of a group run
at the same time. A case has `arguments`, an `environment`, the `folder` to run
in (or null), the `num_hosts` that JAX finds, and whether `nobody_reads`
standard output; its result has `status` and `stderr`, which includes standard
output if somebody reads.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import Any

import jax

from transformer_xl import command_line
from transformer_xl import main
from transformer_xl.data_prep.synthetic import task

# What a case has beside its arguments, unless it says otherwise.
ORDINARY = {
  **{"environment": {}, "folder": None},
  **{"nobody_reads": False, "num_hosts": 1},
}


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Runs command lines at the same time, each as a shell would."""
  with contextlib.ExitStack() as stack:
    logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in cases]
    children = [_start(*pair) for pair in zip(cases, logs, strict=True)]
    return [_finish(*pair) for pair in zip(children, logs, strict=True)]


def _start(case, log):
  child = os.fork()
  if child == 0:
    _become(ORDINARY | case, log.fileno())
  return child


def _finish(child, log):
  _, status = os.waitpid(child, 0)
  log.seek(0)
  text = log.read().decode()
  return {"status": os.waitstatus_to_exitcode(status), "stderr": text}


def _become(case, log):
  os.dup2(log, sys.stderr.fileno())
  os.dup2(log, sys.stdout.fileno())
  if case["nobody_reads"]:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stdout.fileno())
  if case["num_hosts"] > 1:
    jax.process_count = lambda: case["num_hosts"]
  os.environ.update(case["environment"])
  os.chdir(case["folder"] or os.curdir)
  sys.argv = ["transformer_xl/main.py", *case["arguments"]]
  sys.orig_argv = ["python", "-m", "transformer_xl.main", *case["arguments"]]
  status = 0
  try:
    main.run()
  except SystemExit as error:
    status = error.code or 0
  except BaseException:
    traceback.print_exc()
    status = 70
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


if __name__ == "__main__":
  for mode in ("train", "eval", "generate", "score"):
    importlib.import_module(f"transformer_xl.{main.MODES[mode].module}")
  task.NUM_TOKENS = 20_000  # Studies prepare texts, of which none is learnt.
  command_line.require_flags_of_xla()  # Once for all forks.
  print(json.dumps([run(group) for group in json.load(sys.stdin)]))
