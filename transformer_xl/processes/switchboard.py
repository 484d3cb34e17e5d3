"""Connects the processes of a run; a thread of the first of them.

Each process has a line to it: a TCP connection to the address on which JAX's
own service listens as soon as all are there. The operating system closes the
line of a process that is killed, at once and whatever Python does meanwhile,
and in half a minute that of a host that is gone. A message is a JSON object on
a line.
"""

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence

from transformer_xl import errors

# A peer that does not answer for this long is gone.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3
_WAIT_SECONDS = 1.0
_LONGEST_MESSAGE = 1 << 20
# After a mistake before all have joined, those that come later are told, too.
REFUSAL_SECONDS = 10.0


def named(numbers: Sequence[int]) -> str:
  """Processes by their numbers, as in "processes 1, 2 and 3"."""
  *first, last = map(str, numbers[:8])
  if len(numbers) > 8:
    first, last = [*first, last], f"{len(numbers) - 8} more"
  several = f"{', '.join(first)} and {last}"
  return f"processes {several}" if first else f"process {last}"


def gone(number: int) -> str:
  """What the others say of a process that ended without a word."""
  return (
    f"process {number} is gone; the same command in all processes continues "
    "from the last whole checkpoint."
  )


class Line:
  """A connection that carries messages."""

  def __init__(self, connection: socket.socket):
    self._socket = connection
    self._buffer = b""
    self._sending = threading.Lock()
    connection.settimeout(_WAIT_SECONDS)
    _keep_alive(connection)

  def fileno(self) -> int:
    """The number of the connection's file."""
    return self._socket.fileno()

  def close(self) -> None:
    """Ends the connection."""
    self._socket.close()

  def send(self, **message: object) -> None:
    """Sends a message; one that cannot be sent is lost, as its reader is."""
    with self._sending, contextlib.suppress(OSError):
      self._socket.sendall(json.dumps(message).encode() + b"\n")

  def receive(self) -> list[dict]:
    """The messages that have arrived; waits a second for some.

    Raises:
      ConnectionError: the connection is closed, or no messages come from it.
    """
    try:
      data = self._socket.recv(1 << 16)
    except TimeoutError:
      return []
    except OSError as error:
      raise ConnectionError(str(error)) from error
    *lines, self._buffer = (self._buffer + data).split(b"\n")
    try:
      messages = [json.loads(line) for line in lines]
    except ValueError as error:
      raise ConnectionError("another program answers") from error
    is_ours = all(isinstance(one, dict) for one in messages)
    if not data or not is_ours or len(self._buffer) > _LONGEST_MESSAGE:
      raise ConnectionError("the connection is closed")
    return messages


class Switchboard:
  """Answers the lines of all processes, until all are closed.

  Attributes:
    is_left_alone: set as soon as all other processes have closed their lines.
    is_over: set as soon as it answers no longer.
  """

  def __init__(self, port: int, count: int):
    """Listens on a port.

    Raises:
      UserError: the port is taken.
    """
    self._listener = _listener(port)
    self._count = count
    self._numbers: dict[Line, int] = {}  # Of those that have said theirs.
    self._have_come: set[int] = set()
    self._is_joined = False
    self._refusal: dict | None = None
    self._refused_at = 0.0
    self._news: dict | None = None
    self._have_left: set[int] = set()
    self._values: dict[int, object] = {}
    self._stop_is_asked = False
    self._polls: dict[int, int] = {}
    self.is_left_alone = threading.Event()
    self.is_over = threading.Event()
    threading.Thread(target=self._answer_all, daemon=True).start()

  def _answer_all(self) -> None:
    with selectors.DefaultSelector() as selector:
      selector.register(self._listener, selectors.EVENT_READ)
      while not self._ends():
        for key, _ in selector.select(timeout=1.0):
          line = key.fileobj
          if isinstance(line, socket.socket):
            with contextlib.suppress(OSError):  # It has hung up already.
              connection, _ = self._listener.accept()
              selector.register(Line(connection), selectors.EVENT_READ)
            continue
          assert isinstance(line, Line)
          try:
            for message in line.receive():
              self._answer(line, message)
          except (ConnectionError, LookupError, TypeError):
            # Of the latter kinds are errors in what others than ours send.
            selector.unregister(line)
            line.close()
            self._miss(line)
        if len(self._have_come) == self._count and not self._is_joined:
          # JAX's service takes the port as soon as anybody knows.
          selector.unregister(self._listener)
          self._listener.close()
          self._is_joined = True
          if self._refusal is None:
            self._send_all(joined=True)
    self._listener.close()
    self.is_over.set()

  def _ends(self) -> bool:
    if self._refusal is not None:
      seconds = time.monotonic() - self._refused_at
      return self._is_joined or seconds > REFUSAL_SECONDS
    return self._is_joined and not self._numbers

  def _send_all(self, **message: object) -> None:
    for line in self._numbers:
      line.send(**message)

  def _answer(self, line: Line, message: dict) -> None:
    if "process" in message:
      self._welcome(line, message)
      return
    number = self._numbers[line]
    if "left" in message:
      self._have_left.add(number)
      status = message["left"]
      if status:
        self._tell(f"process {number} ended: {message['reason']}", status)
      elif len(self._have_left) == self._count:
        self._send_all(over=True)
    elif "value" in message:
      self._values[number] = message["value"]
      if len(self._values) == self._count:
        values = [self._values[each] for each in range(self._count)]
        self._values.clear()
        self._send_all(values=values)
    elif "stop" in message and not self._stop_is_asked:
      self._stop_is_asked = True
      self._send_all(stop=True)
    elif "polls" in message:
      self._polls[number] = message["polls"]
      if len(self._polls) == self._count:
        self._send_all(stop_at=max(self._polls.values()) + 1)

  def _welcome(self, line: Line, message: dict) -> None:
    """Answers a process that says which one it is."""
    number, count = message["process"], message["of"]
    if number not in range(count):
      raise LookupError(number)
    if count != self._count:
      self._refuse(
        f"process {number} was started as one of {count} and process 0 as one "
        f"of {self._count}: give all processes the same --num_processes."
      )
    elif number in self._numbers.values():
      self._refuse(
        f"two processes were started as process {number}: give each its own "
        f"--process_id from 0 to {self._count - 1}."
      )
    elif message["mistake"]:
      self._refuse(f"process {number}: {message['mistake']}", message["status"])
    self._numbers[line] = number
    self._have_come.add(number)
    missing = sorted({*range(self._count)} - self._have_come)
    self._send_all(missing=missing)
    if self._refusal is not None:
      self._send_all(**self._refusal)

  def _refuse(self, reason: str, status: int = 2) -> None:
    """Tells all processes why they do not start, also those that come later."""
    if self._refusal is None:
      self._refusal = {"refused": reason, "status": status}
      self._refused_at = time.monotonic()

  def _miss(self, line: Line) -> None:
    """Notices that a line has been closed."""
    number = self._numbers.pop(line, None)
    if number is None:
      return
    if not self._is_joined:
      if self._refusal is None:
        self._have_come.discard(number)  # It may be started again.
      return
    if not {*self._numbers.values()} - {0}:
      self.is_left_alone.set()
    # JAX lets no process end before all have said that they leave.
    if len(self._have_left) < self._count:
      self._tell(gone(number), 1)

  def _tell(self, news: str, status: int) -> None:
    """Tells all processes why they end; the first reason counts."""
    if self._news is None:
      self._news = {"news": news, "status": status}
      self._send_all(**self._news)


def _listener(port: int) -> socket.socket:
  """A socket that listens on a port of all addresses.

  Raises:
    UserError: the port is taken.
  """
  family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
  try:
    return socket.create_server(
      ("", port),
      family=family,
      backlog=1024,
      dualstack_ipv6=family == socket.AF_INET6,
    )
  except (OSError, OverflowError) as error:
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    raise errors.UserError(
      f"process 0 cannot listen on port {port} ({reason}): give all "
      "processes another port in --coordinator=HOST:PORT."
    ) from error


def _keep_alive(connection: socket.socket) -> None:
  """Lets the operating system find out that the other host is gone."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  dead_after = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
  for name, value in (
    ("TCP_KEEPIDLE", _IDLE_SECONDS),
    ("TCP_KEEPINTVL", _PROBE_SECONDS),
    ("TCP_KEEPCNT", _PROBES),
    ("TCP_USER_TIMEOUT", 1000 * dead_after),
  ):
    option = getattr(socket, name, None)  # macOS lacks some.
    if option is not None:
      connection.setsockopt(socket.IPPROTO_TCP, option, value)
