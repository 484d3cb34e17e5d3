"""A bucket on this machine: gcp-storage-emulator in a process of its own.

python -m tests.emulator prints the port on which it serves a bucket from
memory, and ends with its standard input, so it outlives no process of tests.
"""

import contextlib
import http.server
import pathlib
import subprocess
import sys

from etils import epath
from gcp_storage_emulator import server

ROOT = pathlib.Path(__file__).parents[1]
BUCKET = "gs://emulated"


def environment(port):
  """What makes this process, and those it starts, use a server as Google's."""
  address = f"http://127.0.0.1:{port}"
  return {
    "STORAGE_EMULATOR_HOST": address,
    "TENSORSTORE_GCS_HTTP_URL": address,
    "NO_GCE_CHECK": "true",  # Do not look for the credentials of a machine.
    "GOOGLE_CLOUD_PROJECT": "emulated",
  }


@contextlib.contextmanager
def serving(log):
  """Yields the port. Clients that leave early make noise, which `log` gets."""
  command = [sys.executable, "-m", "tests.emulator"]
  pipe = subprocess.PIPE
  with (
    open(log, "wb") as file,
    subprocess.Popen(
      command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=file
    ) as process,
  ):
    yield int(process.stdout.readline())
    process.stdin.close()


def upload(folder, address):
  """Writes the files of a folder, and of those in it, to a bucket."""
  for path in pathlib.Path(folder).rglob("*"):
    if path.is_file():
      target = epath.Path(address) / str(path.relative_to(folder))
      target.write_bytes(path.read_bytes())


def main():
  http.server.HTTPServer.request_queue_size = 128  # Many files at once.
  name = BUCKET.removeprefix("gs://")
  emulator = server.create_server(
    "127.0.0.1", 0, in_memory=True, default_bucket=name
  )
  emulator.start()
  print(emulator._api._httpd.server_port, flush=True)
  sys.stdin.read()
  emulator.stop()


if __name__ == "__main__":
  main()
