"""A server before the emulated bucket that fails as it is told.

It serves in threads of the process of the tests; the clients are others.
"""

import contextlib
import dataclasses
import http.client
import http.server
import json
import threading
import time
import urllib.parse

UPLOADS = ("POST", "PUT")
ALL = (*UPLOADS, "GET", "PATCH", "DELETE")


@dataclasses.dataclass
class Fault:
  """What happens to requests: to the next few, or those of some seconds.

  `kind` is "answer" (with a status and nothing else), "delay" (by seconds),
  "drop" (the connection, in the middle of what is sent or fetched) or "lose"
  (the answer to what the bucket has done).
  """

  kind: str
  status: int = 503
  message: str = "We encountered an internal error. Please try again."
  delay: float = 0.0
  methods: tuple[str, ...] = ALL
  path: str = ""  # A part of the address.
  requests: int = 1_000_000
  seconds: float = 1_000_000.0
  hits: int = 0

  def __post_init__(self):
    self._end = time.monotonic() + self.seconds

  def takes(self, method, path):
    """Whether it happens to this request."""
    is_due = self.hits < self.requests and time.monotonic() < self._end
    is_meant = method in self.methods and self.path in path
    self.hits += is_due and is_meant
    return is_due and is_meant


class FaultyServer:
  """Passes requests on to the emulator, except those that a fault takes."""

  def __init__(self, port):
    self.emulator, self.fault = port, None
    self.requests = []  # The method and the address of each.
    self.port, self._lock = 0, threading.Lock()
    self.accept()

  def accept(self):
    """Listens, always at the same port."""
    address = ("127.0.0.1", self.port)
    self._server = http.server.ThreadingHTTPServer(address, _Handler, False)
    self._server.request_queue_size = 128
    self._server.handle_error = lambda *_: None  # Clients may leave early.
    self._server.faulty = self
    self._server.server_bind()
    self._server.server_activate()
    self.port = self._server.server_port
    threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()

  def refuse(self):
    """Refuses connections."""
    self._server.shutdown()
    self._server.server_close()

  def take(self, method, path):
    """The fault that happens to a request, or None."""
    with self._lock:
      path, fault = urllib.parse.unquote(path), self.fault
      self.requests.append((method, path))
      return fault if fault and fault.takes(method, path) else None

  @contextlib.contextmanager
  def failing(self, kind, **fields):
    """A fault until the end of the block; yields it, for its `hits`."""
    self.fault = Fault(kind, **fields)
    yield self.fault
    self.fault = None


class _Handler(http.server.BaseHTTPRequestHandler):
  def _serve(self):
    size = int(self.headers.get("Content-Length") or 0)
    fault = self.server.faulty.take(self.command, self.path)
    kind = fault.kind if fault else None
    if kind == "drop" and size:
      self.rfile.read(size // 2)
      return
    body = self.rfile.read(size)
    if kind == "answer":
      self._answer(fault)
      return
    if kind == "delay":
      time.sleep(fault.delay)
    status, headers, content = self._ask(body)
    if kind == "lose":
      return
    self.send_response(status)
    for name, value in headers:
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(
      content[: len(content) // 2] if kind == "drop" else content
    )

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

  def _ask(self, body):
    emulator = http.client.HTTPConnection(
      "127.0.0.1", self.server.faulty.emulator
    )
    with contextlib.closing(emulator):
      emulator.request(self.command, self.path, body, dict(self.headers))
      reply = emulator.getresponse()
      return reply.status, reply.getheaders(), reply.read()

  def _answer(self, fault):
    """As Google's errors are written."""
    error = {"code": fault.status, "message": fault.message}
    content = json.dumps({"error": error | {"errors": [error]}}).encode()
    self.send_response(fault.status)
    self.send_header("Content-Type", "application/json; charset=UTF-8")
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *_):
    """Says nothing."""
