"""Processes that are asked who is missing, for `test_roll_call.py`.

python -m tests.missing FOLDER writes `result.json`: what becomes of an error in
each of three processes while all are there, and in the first when the third has
ended and the second was killed. Processes are forks of one that has imported
everything and has not started JAX.
"""

import json
import os
import pathlib
import signal
import socket
import sys
import time

import jax
from jax.experimental import multihost_utils

from transformer_xl import processes
from transformer_xl import roll_call


def fail():
  """What an error becomes, as text, and how many seconds that takes."""
  start = time.monotonic()
  try:
    with roll_call.on_failure():
      raise ValueError("not what was saved\nin a second line")
  except Exception as error:
    text = f"{type(error).__name__}: {error}"
  return text, time.monotonic() - start


def become(folder, port, index, everybody_ended):
  processes.join(f"localhost:{port}", 3, index)
  texts = [fail()[0]]
  multihost_utils.sync_global_devices("all have failed")
  if index:
    (folder / f"{index}.json").write_text(json.dumps(texts))
    if index == 1:
      os.kill(os.getpid(), signal.SIGKILL)
    roll_call.leave()  # As where it has a mistake of its own.
    os._exit(0)
  everybody_ended.read()
  roll_call._ANSWER_SECONDS = 3.0
  text, seconds = fail()
  (folder / "0.json").write_text(json.dumps([*texts, text, seconds]))
  os._exit(0)


def main(folder):
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    port = listener.getsockname()[1]
  ear, mouth = os.pipe()
  children = []
  for index in range(3):
    child = os.fork()
    if child == 0:
      os.close(mouth)
      log = (folder / f"{index}.log").open("w")
      os.dup2(log.fileno(), sys.stderr.fileno())
      become(folder, port, index, os.fdopen(ear))
    children.append(child)
  statuses = [os.waitpid(child, 0)[1] for child in children[1:]]
  assert statuses == [signal.SIGKILL, 0], statuses
  os.close(mouth)
  assert os.waitpid(children[0], 0)[1] == 0
  found = [json.loads((folder / f"{i}.json").read_text()) for i in range(3)]
  (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  main(pathlib.Path(sys.argv[1]))
