"""A server with the protocol of the HuggingFace Hub, and a client of it.

python -m tests.importers.hub FOLDER CACHE < ADDRESSES > RESULTS, both JSON: the
models are FOLDER/OWNER/NAME/REVISION/..., and each is downloaded in turn. In
place of an address, "offline" stops the server, and "load ADDRESS" scores text.
"""

import hashlib
import http.server
import json
import os
import pathlib
import sys
import threading
import urllib.parse
from typing import ClassVar

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers as the Hub does, for what `huggingface_hub` asks."""

  folder: pathlib.Path
  asked: ClassVar[list[str]] = []

  def do_HEAD(self):
    self._answer(with_body=False)

  def do_GET(self):
    self._answer(with_body=True)

  def log_message(self, *_):
    """Nothing: standard error is the client's."""

  def _answer(self, *, with_body):
    path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
    self.asked.append(f"{self.command} {path}")
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "models"]:
      owner, name, kind, revision = parts[2:6]
      status, error, body = self._listing(f"{owner}/{name}", kind, revision)
      headers = {"Content-Type": "application/json"}
    else:
      owner, name, _, commit, *rest = parts
      names = {commit: name for name, commit in COMMITS.items()}
      file = self.folder / owner / name / names[commit] / "/".join(rest)
      status, error, body = 200, "", file.read_bytes()
      etag = hashlib.sha256(body).hexdigest()
      headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit}
    self.send_response(status)
    if error:
      headers["X-Error-Code"] = error
    for header, value in (headers | {"Content-Length": len(body)}).items():
      self.send_header(header, str(value))
    self.end_headers()
    if with_body:
      self.wfile.write(body)

  def _listing(self, model, kind, revision):
    if not (self.folder / model).exists():
      return 404, "RepoNotFound", b"{}"
    if model.endswith("gated"):
      return 403, "GatedRepo", b"{}"
    names = {commit: name for name, commit in COMMITS.items()}
    revision = names.get(revision, revision)
    root = self.folder / model / revision
    if not root.exists():
      return 404, "RevisionNotFound", b"{}"
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if kind == "revision":
      answer = {"id": model, "sha": COMMITS[revision], "siblings": []}
    else:
      answer = [
        {
          "type": "file",
          "path": str(path.relative_to(root)),
          "size": path.stat().st_size,
          "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
        }
        for path in files
      ]
    return 200, "", json.dumps(answer).encode()


def main(folder: str, cache: str) -> None:
  """Serves, and is a user's process."""
  Handler.folder = pathlib.Path(folder)
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
  os.environ["HF_HOME"] = cache
  os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
  print(json.dumps([_result(server, one) for one in json.load(sys.stdin)]))


def _result(server, address):
  import transformer_xl
  from transformer_xl.importers import hub

  if address == "offline":
    server.shutdown()
    return server.server_close()
  Handler.asked.clear()
  try:
    if address.startswith("load "):
      model = transformer_xl.load(address.removeprefix("load "))
      (score,) = model.score(["abc"])
      return {"source": model.source, "nll": score.nll}
    found = hub.download(address)
    files = sorted(path.name for path in pathlib.Path(found.folder).rglob("*"))
    return {"address": found.address, "files": files, "asked": Handler.asked[:]}
  except transformer_xl.UserError as error:
    return {"error": str(error), "asked": Handler.asked[:]}


if __name__ == "__main__":
  main(*sys.argv[1:])
