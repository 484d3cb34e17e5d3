"""A server with the protocol of the HuggingFace Hub, and a client of it.

python -m tests.importers.hub FOLDER CACHE < ADDRESSES > RESULTS, both JSON: the
models and datasets are FOLDER/OWNER/NAME/REVISION/..., and each is downloaded
in turn. In place of an address, "offline" stops the server, "load ADDRESS"
scores text, "import FORMAT ADDRESS" imports and scores text, "upload OWNER/NAME
FOLDER" runs `hf upload`, "transformers OWNER/NAME" generates in PyTorch, and
"prepare NAME ADDRESS" prepares a dataset in CACHE/NAME.
"""

import base64
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse
from typing import ClassVar

COMMITS = {"main": "a" * 40, "v1": "b" * 40, "refs/convert/parquet": "c" * 40}


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers as the Hub does, for what `huggingface_hub` asks."""

  folder: pathlib.Path
  asked: ClassVar[list[str]] = []

  def do_HEAD(self):
    self._answer(with_body=False)

  def do_GET(self):
    self._answer(with_body=True)

  def do_POST(self):
    """What `hf upload` sends, with every file inside the commit."""
    parts = urllib.parse.urlparse(self.path).path.strip("/").split("/")
    content = self.rfile.read(int(self.headers["Content-Length"]))
    if parts[1:] == ["repos", "create"]:
      answer = {"url": f"http://{self.headers['Host']}/me/pushed"}
    elif parts[1:] == ["validate-yaml"]:
      answer = {"errors": [], "warnings": []}
    elif parts[4] == "preupload":
      names = [file["path"] for file in json.loads(content)["files"]]
      mode = {"uploadMode": "regular", "shouldIgnore": False}
      answer = {"files": [{"path": name, **mode} for name in names]}
    else:
      root = self.folder / parts[2] / parts[3] / parts[5]
      for line in map(json.loads, content.splitlines()):
        if line["key"] == "file":
          path = root / line["value"]["path"]
          path.parent.mkdir(parents=True, exist_ok=True)
          path.write_bytes(base64.b64decode(line["value"]["content"]))
      commit = COMMITS[parts[5]]
      address = f"/{parts[2]}/{parts[3]}/commit/{commit}"
      answer = {"commitOid": commit, "commitUrl": address}
    body = json.dumps(answer).encode()
    self.send_response(200)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_):
    """Nothing: standard error is the client's."""

  def _answer(self, *, with_body):
    path = urllib.parse.urlparse(self.path).path
    self.asked.append(f"{self.command} {urllib.parse.unquote(path)}")
    # A revision may have slashes, which are quoted.
    parts = [urllib.parse.unquote(part) for part in path[1:].split("/")]
    if parts[0] == "datasets":  # Their files; models have no such word.
      del parts[0]
    if parts[:1] == ["api"]:
      owner, name, kind, revision = (parts[2:6] + ["revision", "main"])[:4]
      status, error, body = self._listing(f"{owner}/{name}", kind, revision)
      headers = {"Content-Type": "application/json"}
    else:
      owner, name, _, commit, *rest = parts
      names = {commit: name for name, commit in COMMITS.items()}
      commit = COMMITS.get(commit, commit)
      file = self.folder / owner / name / names[commit] / "/".join(rest)
      status, error, body = 404, "EntryNotFound", b""
      if file.exists():
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
  os.environ["HF_TOKEN"] = "nobody's"  # This server does not look at it.
  print(json.dumps([_result(server, one) for one in json.load(sys.stdin)]))


def _result(server, address):
  import transformer_xl
  from transformer_xl.importers import hub

  if address == "offline":
    server.shutdown()
    return server.server_close()
  Handler.asked.clear()
  try:
    if address.startswith("upload "):
      command = [sys.executable, "-m", "huggingface_hub.cli.hf"]
      done = subprocess.run(
        command + address.split(), capture_output=True, text=True, check=False
      )
      return {"status": done.returncode, "output": done.stdout + done.stderr}
    if address.startswith("transformers "):
      import transformers

      name = address.removeprefix("transformers ")
      ids = transformers.AutoTokenizer.from_pretrained(
        name, trust_remote_code=True
      )("abc", return_tensors="pt")
      model = transformers.AutoModelForCausalLM.from_pretrained(
        name, trust_remote_code=True
      )
      found = model.generate(**ids, max_new_tokens=5, do_sample=False)
      return {"tokens": found[0].tolist()}
    if address.startswith("load "):
      model = transformer_xl.load(address.removeprefix("load "))
      (score,) = model.score(["abc"])
      return {"source": model.source, "nll": score.nll}
    if address.startswith("import "):
      from transformer_xl.importers import import_run

      form, source = address.split()[1:]
      workdir = os.path.join(os.environ["HF_HOME"], form)
      report = import_run.make(import_run.Request(form, source), workdir)
      (score,) = transformer_xl.load(workdir).score(["abc"])
      return {"source": report["source"], "nll": score.nll}
    if address.startswith("prepare "):
      from transformer_xl.data_prep import preparation

      name, source = address.split()[1:]
      preparation.prepare(
        dataset="text",
        data_dir=os.environ["HF_HOME"],
        source=source,
        name=name,
        valid_fraction=0,
        test_fraction=0,
      )
      return {"asked": Handler.asked[:]}
    found = hub.download(address)
    files = sorted(path.name for path in pathlib.Path(found.folder).rglob("*"))
    return {"address": found.address, "files": files, "asked": Handler.asked[:]}
  except transformer_xl.UserError as error:
    return {"error": str(error), "asked": Handler.asked[:]}


if __name__ == "__main__":
  main(*sys.argv[1:])
