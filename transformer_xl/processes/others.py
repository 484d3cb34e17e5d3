"""What the processes of a run tell each other, apart from arrays.

When a process is killed, the others fail with whatever error the library at
work has for a lost connection, or wait: Gloo has a ValueError, as a damaged
file has, and JAX waits for 100 seconds and aborts. So each process has a line
to a switchboard in process 0, and a thread that listens to it.
"""

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from absl import logging

from transformer_xl import errors
from transformer_xl import signals
from transformer_xl.processes import switchboard

JOIN_SECONDS = 300.0  # Machines of a cluster may start minutes apart.
_SAY_SECONDS = 15.0
_RETRY_SECONDS = 0.5
_STRANGER_SECONDS = 30.0  # A run that ends may still have the port.
_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
# How long a process that others have left may go on, to end with an error of
# its own. It is JAX's abort that follows the loss of process 0, at once.
_OWN_END_SECONDS = 4.0
# Process 0 ends last, since JAX aborts all others then.
_LAST_SECONDS = 6.0
# Within which a lost process is known here.
_NEWS_SECONDS = 2.0


class _Member:
  """This process, as one of several."""

  def __init__(
    self, line: switchboard.Line, board: switchboard.Switchboard | None
  ):
    self._line = line
    self._board = board
    self._changed = threading.Condition()
    self._news: errors.LostProcessError | None = None
    self._has_left = False
    self._ends_itself = False
    self._values: list | None = None
    self._polls = 0
    self._stop_is_asked = False
    self._stops_at: int | None = None
    threading.Thread(target=self._listen, daemon=True).start()

  def leave(self, status: int, reason: str) -> None:
    with self._changed:
      is_ending = self._ends_itself
      if not is_ending and self._has_left and not status:
        return
      self._has_left = True
      self._ends_itself = is_ending or status != 0
    if is_ending:
      if status:  # Another thread ends the process, and has told why.
        time.sleep(_LAST_SECONDS)
      return
    self._line.send(left=status, reason=reason)
    if status:
      self._wait_for_others()

  def values(self, value: object) -> list:
    self._line.send(value=value)
    with self._changed:
      self._changed.wait_for(lambda: self._values is not None)
      values, self._values = self._values, None
    assert values is not None
    return values

  def ask_to_stop(self) -> None:
    self._line.send(stop=True)

  def stops(self, poll: int) -> bool:
    with self._changed:
      self._polls = poll
      # All processes say now how far they are, and none goes on meanwhile.
      self._changed.wait_for(
        lambda: not self._stop_is_asked or self._stops_at is not None
      )
      return self._stops_at is not None and poll >= self._stops_at

  def news(self, seconds: float) -> errors.LostProcessError | None:
    with self._changed:
      self._changed.wait_for(lambda: self._news is not None, seconds)
      return self._news

  def _listen(self) -> None:
    try:
      while True:
        for message in self._line.receive():
          if "over" in message:
            return
          self._hear(message)
    except ConnectionError:
      self._hear({"news": switchboard.gone(0), "status": 1})
      self._end()  # JAX would abort this process.

  def _hear(self, message: dict) -> None:
    with self._changed:
      if "values" in message:
        self._values = message["values"]
      elif "stop" in message:
        self._stop_is_asked = True
        self._line.send(polls=self._polls)
      elif "stop_at" in message:
        self._stops_at = message["stop_at"]
      elif "news" in message and self._news is None:
        status = message["status"]
        self._news = errors.LostProcessError(message["news"], status)
        is_stopped = status in (signals.INTERRUPTED, signals.TERMINATED)
        seconds = 0.0 if is_stopped else _OWN_END_SECONDS
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
      self._changed.notify_all()

  def _end(self) -> None:
    """Ends the process with the news, unless it ends by itself already."""
    with self._changed:
      news = self._news
      if self._ends_itself or news is None:
        return
      self._ends_itself = True
    self._wait_for_others()
    signals.end(str(news), news.status)

  def _wait_for_others(self) -> None:
    if self._board is not None:
      self._board.is_left_alone.wait(_LAST_SECONDS)


class _Caller:
  """The attempts of a process to reach process 0, until it answers.

  Attributes:
    line: to process 0, as soon as somebody listens there. It begins with the
      greeting, which says who calls and how many are to come.
  """

  def __init__(
    self,
    address: str,
    host_and_port: tuple[str, int],
    greeting: dict,
    limit: float,
  ):
    self.line: switchboard.Line | None = None
    self._address = address
    self._host_and_port = host_and_port
    self._greeting = greeting
    self._limit = limit
    self._missing = [0]
    self._start = self._said = self._strange_since = time.monotonic()

  def is_late(self) -> bool:
    return time.monotonic() - self._start > self._limit

  def missing(self) -> str:
    """Names the processes that have not come."""
    return f"{switchboard.named(self._missing)} of {self._greeting['of']}"

  def messages(self) -> list[dict]:
    """What process 0 says; waits a second or two for it.

    Raises:
      UserError: another program answers instead.
    """
    self._say()
    try:
      if self.line is None:
        self.line = _call(*self._host_and_port)
        self.line.send(**self._greeting)
    except OSError:  # Nobody listens yet, or the name is not known yet.
      self._strange_since = time.monotonic()
      time.sleep(_RETRY_SECONDS)
      return []
    try:
      messages = self.line.receive()
    except ConnectionError:
      self.line.close()
      self.line = None
      self._missing = [0]
      time.sleep(_RETRY_SECONDS)
      return []
    if messages:
      self._strange_since = time.monotonic()
    for message in messages:
      self._missing = message.get("missing") or self._missing
    return messages

  def _say(self) -> None:
    """Logs who is missing, now and then.

    Raises:
      UserError: another program answers instead of process 0.
    """
    now = time.monotonic()
    if now - self._strange_since > _STRANGER_SECONDS and self.line is None:
      raise errors.UserError(
        f"at --coordinator={self._address} another program answers instead of "
        "process 0: give all processes a port of that host that is free."
      )
    if now - self._said > _SAY_SECONDS:
      self._said = now
      logging.info(
        "Waiting for %s at %s (%.0f of %.0f s).",
        self.missing(),
        self._address,
        now - self._start,
        self._limit,
      )


def _refusal(message: dict) -> errors.UserError | errors.LostProcessError:
  """The error that process 0 tells all processes."""
  if message["status"] == 2:
    return errors.UserError(message["refused"])
  return errors.LostProcessError(message["refused"], message["status"])


# Like JAX's own state, it is that of the process.
_member: _Member | None = None


def join(
  address: str,
  number: int,
  count: int,
  *,
  mistake: str = "",
  status: int = 2,
) -> None:
  """Waits until all processes are there, and says who is not.

  Args:
    address: HOST:PORT at which process 0 listens.
    number: of this process.
    count: of all processes.
    mistake: why this process cannot start, if it cannot. It tells the others
      so, and returns.
    status: the exit status after that mistake.

  Raises:
    UserError: the processes do not fit together, or one of them has made a
      mistake; in all of them.
    LostProcessError: some do not come, or one of them cannot start.
  """
  global _member
  host, _, port = address.rpartition(":")
  board = None
  taken: errors.UserError | None = None
  if number == 0:
    host = "localhost"
    _, _, port = os.environ.get(_BIND_ADDRESS, address).rpartition(":")
    try:
      board = switchboard.Switchboard(int(port), count)
    except errors.UserError as error:
      taken = error  # Perhaps by another process that was given number 0.
  waits = not mistake and taken is None
  limit = JOIN_SECONDS if waits else switchboard.REFUSAL_SECONDS
  greeting = {
    "process": number,
    "of": count,
    "mistake": mistake,
    "status": status,
  }
  caller = _Caller(address, (host, int(port)), greeting, limit)
  while not caller.is_late():
    for message in caller.messages():
      if "refused" in message:
        if board is not None:
          board.is_over.wait()  # The others are still told.
        if mistake:
          return
        raise _refusal(message)
      if "joined" in message:
        assert caller.line is not None
        _member = _Member(caller.line, board)
        atexit.register(leave)
        return
  if taken is not None:
    raise taken
  if mistake:
    return
  raise errors.LostProcessError(
    f"{caller.missing()} did not join at {address} within {limit:.0f} s: look "
    "at its log, and start the same command in all processes again."
  )


def is_one_of_several() -> bool:
  """Whether this process has joined others."""
  return _member is not None


def leave(status: int = 0, reason: str = "") -> None:
  """Tells the others that this process ends by itself.

  Args:
    status: its exit status. Unless it is 0, all others end, too; process 0
      waits for them.
    reason: why it ends.
  """
  if _member is not None:
    _member.leave(status, " ".join(reason.split()))


def gather(value: object) -> list:
  """The JSON values that all processes give, which must all call this."""
  return [value] if _member is None else _member.values(value)


def ask_to_stop() -> None:
  """Asks all processes to stop at the same poll."""
  if _member is not None:
    _member.ask_to_stop()


def stops(poll: int) -> bool:
  """Whether to stop at a poll, of which all processes count the same."""
  return _member is not None and _member.stops(poll)


@contextlib.contextmanager
def on_failure() -> Iterator[None]:
  """Asks whether another process has ended if the block fails.

  That may be the cause. For what processes do together. It stands inside of
  what takes other errors for damage or refusals, and of what waits for the
  other processes at its end.

  Raises:
    LostProcessError: in place of the error of the block, if one has ended.
  """
  try:
    yield
  except (errors.UserError, errors.LostProcessError, errors.StoppedError):
    raise
  except Exception as error:  # JAX, Gloo and Orbax have no common type.
    news = None if _member is None else _member.news(_NEWS_SECONDS)
    if news is None:
      raise
    raise news from error


def _call(host: str, port: int) -> switchboard.Line:
  """A line to process 0.

  Raises:
    OSError: it does not answer.
  """
  connection = socket.create_connection((host.strip("[]"), port), timeout=1.0)
  # Before anybody listens, a port of this machine may be connected to itself.
  if connection.getsockname() == connection.getpeername():
    connection.close()
    raise ConnectionRefusedError("nobody listens")
  return switchboard.Line(connection)
