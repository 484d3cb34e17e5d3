"""Downloads from a local server that behaves as badly as others do."""

import concurrent.futures
import hashlib
import http.server
import threading
import time

import pytest
import requests

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import download

SERVED = {
  "/a.zip": b"data",
  "/else.zip": b"else",
  "/long.zip": bytes(range(256)) * 40_000,
}


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves parts of files; breaks off, or leads elsewhere, by the path."""

  def log_message(self, *unused):
    pass

  def do_GET(self):
    self.server.asked.append((self.path, self.headers["Range"]))
    kind, _, name = self.path[1:].partition("/")
    if kind == "open":
      self.send_response(302)
      self.send_header("Location", f"http://mirror.example/{name}")
      self.end_headers()
      return
    content = SERVED.get(f"/{name}")
    if content is None:
      self.send_error(404)
      return
    start = int((self.headers["Range"] or "bytes=0-")[len("bytes=") : -1])
    if start >= len(content):
      self.send_error(416)
      return
    self.send_response(206 if start and kind != "whole" else 200)
    rest = content if kind == "whole" else content[start:]
    self.send_header("Content-Length", str(len(rest)))
    self.end_headers()
    if kind == "slow":
      time.sleep(0.5)
    # One that breaks off does so until somebody asks for the rest.
    breaks = kind == "breaking" and not start
    self.wfile.write(rest[: len(rest) // 2] if breaks else rest)


class ToServer(requests.adapters.HTTPAdapter):
  """Sends what is for https://one, two and so on to the local server."""

  def __init__(self, port):
    super().__init__()
    self._port = port

  def send(self, request, **options):
    assert options["timeout"] > 0
    kind, path = request.url.removeprefix("https://").split("/", 1)
    request.url = f"http://127.0.0.1:{self._port}/{kind}/{path}"
    return super().send(request, **options)


@pytest.fixture
def server(monkeypatch):
  """Serves SERVED; the host's name says how."""
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.asked = []
  genuine = download._session

  def session():
    session = genuine()
    session.trust_env = False
    session.mount("https://", ToServer(server.server_port))
    return session

  monkeypatch.setattr(download, "_session", session)
  thread = threading.Thread(target=server.serve_forever, args=(0.01,))
  thread.start()
  yield server
  server.shutdown()
  thread.join()
  server.server_close()


def archive(content, urls, **changes):
  fields = {
    "filename": "a.zip",
    "urls": urls,
    "size": len(content),
    "sha256": hashlib.sha256(content).hexdigest(),
  }
  return download.Archive(**fields | changes)


def remains_in(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_mirror_serves_when_the_original_fails(tmp_path, server):
  urls = (
    "https://one/missing.zip",
    "https://two/else.zip",
    "https://three/a.zip",
  )
  path = download.fetch(archive(b"data", urls), tmp_path / "cache")
  assert path.read_bytes() == b"data"
  assert remains_in(tmp_path / "cache") == ["a.zip"]
  assert len(server.asked) == 3
  # A second call finds it there, and so asks nobody.
  assert download.fetch(archive(b"data", ()), tmp_path / "cache") == path


def test_a_download_that_broke_off_is_continued(tmp_path, server):
  content = SERVED["/long.zip"]
  wanted = archive(content, ("https://breaking/long.zip",))
  path = download.fetch(wanted, tmp_path / "cache")
  assert path.read_bytes() == content
  assert remains_in(tmp_path / "cache") == ["a.zip"]
  (_, first), (_, second) = server.asked
  assert first is None
  assert int(second[len("bytes=") : -1]) > len(content) // 4


def test_a_later_command_continues_a_download(tmp_path, server):
  content = SERVED["/long.zip"]
  layouts.write_files(tmp_path, {"a.zip.partial": content[:1_000_000]})
  wanted = archive(content, ("https://one/long.zip",))
  assert download.fetch(wanted, tmp_path).read_bytes() == content
  assert server.asked == [("/one/long.zip", "bytes=1000000-")]


def test_two_commands_share_one_download(tmp_path, server, capsys):
  wanted = archive(SERVED["/long.zip"], ("https://slow/long.zip",))
  with concurrent.futures.ThreadPoolExecutor() as pool:
    fetched = [pool.submit(download.fetch, wanted, tmp_path) for _ in range(3)]
  for path in fetched:
    assert path.result().read_bytes() == SERVED["/long.zip"]
  assert len(server.asked) == 1
  assert remains_in(tmp_path) == ["a.zip"]
  assert "waiting for another process" in capsys.readouterr().err


@pytest.mark.parametrize("left", [b"data", b"da", b"xx", b"something else"])
@pytest.mark.parametrize("host", ["one", "whole"])
def test_whatever_is_left_of_a_download_it_ends_well(
  tmp_path, server, left, host
):
  layouts.write_files(tmp_path, {"a.zip.partial": left})
  wanted = archive(b"data", (f"https://{host}/a.zip",))
  assert download.fetch(wanted, tmp_path).read_bytes() == b"data"
  assert remains_in(tmp_path) == ["a.zip"]


def test_a_failed_download_says_why_and_how_to_do_without(tmp_path, server):
  urls = ("https://one/missing.zip", "https://two/else.zip")
  with pytest.raises(errors.UserError) as raised:
    download.fetch(archive(b"data", urls), tmp_path / "cache")
  message = str(raised.value)
  assert "https://one/missing.zip: 404" in message
  assert "https://two/else.zip: " in message
  assert "SHA-256" in message
  assert message.endswith("give it with --source=PATH.")
  assert remains_in(tmp_path / "cache") == []


def test_a_redirection_to_an_open_connection_is_not_followed(tmp_path, server):
  wanted = archive(b"data", ("https://open/a.zip",))
  with pytest.raises(
    errors.UserError, match="leads to an address that is not https"
  ):
    download.fetch(wanted, tmp_path)
  assert remains_in(tmp_path) == []


def test_downloads_are_encrypted(tmp_path):
  with pytest.raises(ValueError, match="https only"):
    download.fetch(archive(b"", ("http://one/a.zip",)), tmp_path)
