"""Processes that fail while others end, for `test_others.py`.

python -m tests.ended FOLDER writes `result.json`: for each way in which the
second of three processes ends, what becomes of an error in the first, and the
status and the last line of the third, which waits. Processes are forks of one
that has imported everything and has not started JAX.
"""

import json
import os
import pathlib
import signal
import sys
import time

import jax

from tests import own_process
from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.processes import joining
from transformer_xl.processes import others


def kill():
  os.kill(os.getpid(), signal.SIGKILL)


def make_a_mistake():
  with command_line.one_line():
    raise errors.UserError("a file is missing")


def finish():
  others.leave()
  time.sleep(60)


WAYS = {"killed": kill, "mistaken": make_a_mistake, "finished": finish}


def become(folder, port, index, way):
  joining.join(f"localhost:{port}", 3, index)
  others._OWN_END_SECONDS = 1.0
  assert others.gather(index) == [0, 1, 2]
  if index == 1:
    WAYS[way]()
  if index == 2:
    time.sleep(60)
  try:
    with others.on_failure():
      raise ValueError("not what was saved\nin a second line")
  except Exception as error:
    text = f"{type(error).__name__}: {error}"
    (folder / "error").write_text(text)
    others.leave(getattr(error, "status", 3), text)


def end(folder, way):
  """How three processes end of which the second ends in a way."""
  port = own_process.free_port()
  children = []
  for index in range(3):
    child = os.fork()
    if child == 0:
      log = (folder / f"{index}.log").open("w")
      os.dup2(log.fileno(), sys.stderr.fileno())
      become(folder, port, index, way)
      os._exit(0)
    children.append(child)
  _, *statuses = [
    os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children
  ]
  *_, last = (folder / "2.log").read_text().splitlines()
  return [(folder / "error").read_text(), *statuses, last]


def main(folder):
  found = {way: end(folder, way) for way in WAYS}
  (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  main(pathlib.Path(sys.argv[1]))
