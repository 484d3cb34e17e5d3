"""Processes that join each other in stand-in environments, by JAX's own code.

python -m tests.joining < CASES > RESULTS, both JSON: a case has `environments`,
one for each process, the `options` of `processes.join`, whether there `is_tpu`,
and `metadata` of its virtual machines, a dictionary for each. A result is a
list with the index, the number of processes and whether JAX has joined them, or
the error of each. Processes are forks of one that has imported everything and
has not started JAX.
"""

import http.server
import json
import os
import sys
import threading

import jax
from jax._src.clusters import cloud_tpu_cluster

from transformer_xl import errors
from transformer_xl import processes

NAMES = ("SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "JAX_COORDINATOR_")


def run(case):
  """Starts the processes of a case together."""
  readers = [
    _start(case, environment, metadata)
    for environment, metadata in zip(
      case["environments"], case["metadata"], strict=True
    )
  ]
  return [json.loads(reader.read()) for reader in readers]


def _start(case, environment, metadata):
  reader, writer = os.pipe()
  if os.fork() == 0:
    for name in [n for n in os.environ if n.startswith(NAMES)]:
      del os.environ[name]
    if case["is_tpu"]:
      _pretend_tpu()
      os.environ["GCE_METADATA_IP"] = _serve(metadata)
    os.environ.update(environment)
    with os.fdopen(writer, "w") as file:
      json.dump(_join(case["options"]), file)
    os._exit(0)
  os.close(writer)
  return os.fdopen(reader)


def _pretend_tpu():
  """What JAX does on a host with chips, until somebody looks for them."""
  jax.config.update("jax_platforms", "tpu,cpu")
  cloud_tpu_cluster.running_in_cloud_tpu_vm = True
  # JAX sets it where there are no chips.
  os.environ.pop("TPU_SKIP_MDS_QUERY", None)
  launcher = processes.launcher

  def find():
    found = launcher()
    jax.config.update("jax_platforms", "cpu")
    return found

  processes.launcher = find


def _join(options):
  try:
    processes.join(**options)
  except errors.UserError as error:
    return str(error)
  joined = jax.distributed.is_initialized()
  result = [jax.process_index(), jax.process_count(), joined]
  if joined:
    jax.distributed.shutdown()
  return result


def _serve(metadata):
  """The address of a metadata server."""

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      _, _, name = self.path.rpartition("/")
      self.send_response(200 if name in metadata else 404)
      self.end_headers()
      self.wfile.write(metadata.get(name, "").encode())

    def log_message(self, *_):
      pass

  server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  return f"127.0.0.1:{server.server_port}"


if __name__ == "__main__":
  print(json.dumps([run(case) for case in json.load(sys.stdin)]))
