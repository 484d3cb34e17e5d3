"""Processes that join each other in stand-in environments.

python -m tests.joining < CASES > RESULTS, both JSON: a case has `environments`,
one for each process, and the `options` of `joining.join`. A result is a list
with the index, the number of processes, whether JAX has joined them and whether
SIGTERM still reaches the process itself; or the error of each. Processes are
forks of one that has imported everything and has not started JAX.
"""

import json
import os
import signal
import sys
import time

import jax

from transformer_xl import errors
from transformer_xl.processes import joining
from transformer_xl.processes import others

NAMES = ("SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "JAX_COORD")


def run(case):
  """Starts the processes of a case together."""
  readers = [
    _start(case["options"], environment) for environment in case["environments"]
  ]
  return [json.loads(reader.read()) for reader in readers]


def _start(options, environment):
  reader, writer = os.pipe()
  if os.fork() == 0:
    for name in [n for n in os.environ if n.startswith(NAMES)]:
      del os.environ[name]
    os.environ.update(environment)
    with os.fdopen(writer, "w") as file:
      json.dump(_join(options), file)
    os._exit(0)
  os.close(writer)
  return os.fdopen(reader)


def _join(options):
  received = []
  signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
  try:
    joining.join(**options)
  except errors.UserError as error:
    others.leave()
    if jax.distributed.is_initialized():
      jax.distributed.shutdown()
    return str(error)
  joined = jax.distributed.is_initialized()
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.1)
  others.leave()
  index, count = jax.process_index(), jax.process_count()
  if joined:
    jax.distributed.shutdown()
  return [index, count, joined, bool(received)]


if __name__ == "__main__":
  print(json.dumps([run(case) for case in json.load(sys.stdin)]))
