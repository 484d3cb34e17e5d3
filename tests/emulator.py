"""A bucket on this machine: gcp-storage-emulator in a process of its own.

python -m tests.emulator prints the port on which it serves a bucket from
memory, and ends with its standard input, so it outlives no process of tests.
Unlike the package alone it heeds generations, as locks and Orbax rely on them,
and tells a client that asks again that its upload is complete.
"""

import contextlib
import functools
import http
import http.server
import json
import pathlib
import shutil
import subprocess
import sys

import fsspec
from etils import epath
from gcp_storage_emulator import exceptions
from gcp_storage_emulator import server

ROOT = pathlib.Path(__file__).parents[1]
BUCKET = "gs://emulated"
completed = {}  # What was answered to uploads in several requests.


def environment(port):
  """What makes this process, and those it starts, use a server as Google's."""
  address = f"http://127.0.0.1:{port}"
  return {
    "STORAGE_EMULATOR_HOST": address,
    "TENSORSTORE_GCS_HTTP_URL": address,
    "NO_GCE_CHECK": "true",  # Do not look for the credentials of a machine.
    "GOOGLE_CLOUD_PROJECT": "emulated",
  }


def download(address, folder):
  """Copies a bucket's folder, with all that is in it, to a new one; returns it.

  What is not in the bucket is not in the copy either.
  """
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir()
  bucket = fsspec.filesystem("gs")
  for path in bucket.find(address):
    name = path.removeprefix(address.removeprefix("gs://")).lstrip("/")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bucket.cat_file(path))
  return folder


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


def with_generations(handle):
  """A handler that answers only if the object has the generation asked for."""

  @functools.wraps(handle)
  def answer(request, response, storage):
    generation = _generation(request, storage)
    wanted = request.query.get("ifGenerationMatch", [generation])
    known = request.query.get("ifGenerationNotMatch", [None])
    upload = request.query.get("upload_id", [None])[0]
    if upload in completed:
      _ = request.data
      response.json(completed[upload])
    elif wanted != [generation]:
      _ = request.data  # A client does not listen before it has sent all.
      response.status = http.HTTPStatus.PRECONDITION_FAILED
    elif known == [generation]:
      response.status = http.HTTPStatus.NOT_MODIFIED
    else:
      response["X-Goog-Generation"] = generation
      handle(request, response, storage)
      if upload and response.status == http.HTTPStatus.OK:
        completed[upload] = json.loads(response._content)

  return answer


def _generation(request, storage):
  """The number of the object that a request names; 0 if there is none."""
  name = request.params.get("object_id") or request.query.get("name", [""])[0]
  if request.query.get("uploadType") == ["multipart"]:
    name = request.data["meta"]["name"]
  try:
    found = storage.get_file_obj(request.params.get("bucket_name"), name)
  except exceptions.NotFound:
    return "0"
  return found["generation"]


def main():
  server.HANDLERS = tuple(
    (
      path,
      {name: with_generations(handle) for name, handle in methods.items()},
    )
    for path, methods in server.HANDLERS
  )
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
