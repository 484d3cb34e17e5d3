"""How a command stops at signals, and goes on without its terminal."""

import functools
import os
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import logging

INTERRUPTION = "interrupted; the same command starts it again."
INTERRUPTED = 130  # The exit status after Ctrl-C, by convention of shells.
# The exit status after another signal. Engines that restart what was preempted
# know by it that the command is not finished: 0 would say that it is.
TERMINATED = 143


def _ignore(number: int, frame: types.FrameType | None) -> None:
  """Handles a signal that is answered elsewhere."""


class Listener:
  """Answers signals at once, from a thread, until it is closed.

  Python runs signal handlers between its own instructions, so not while it
  waits for the devices or the compiler.
  """

  def __init__(
    self,
    numbers: Sequence[signal.Signals],
    answer: Callable[[signal.Signals], None],
    handler: Callable[[int, types.FrameType | None], None] = _ignore,
  ):
    """Replaces handlers; only in the main thread.

    Args:
      numbers: the signals.
      answer: called in the thread for each that arrives.
      handler: called by Python, when it comes to it.
    """
    self._numbers = numbers
    self._answer = answer
    self._arrivals, self._wakeup = socket.socketpair()
    self._wakeup.setblocking(False)
    self._previous_wakeup = signal.set_wakeup_fd(
      self._wakeup.fileno(), warn_on_full_buffer=False
    )
    self._thread = threading.Thread(target=self._listen, daemon=True)
    self._thread.start()
    self._previous = {n: signal.signal(n, handler) for n in numbers}

  def close(self) -> None:
    """Restores the previous handlers."""
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._previous_wakeup)
    self._wakeup.close()  # Which ends the thread.
    self._thread.join()
    self._arrivals.close()

  def _listen(self) -> None:
    while arrived := self._arrivals.recv(1):
      if arrived[0] in self._numbers:
        self._answer(signal.Signals(arrived[0]))


def end_at_signals(
  *,
  keeps_running: bool = False,
  before: Callable[[int, str], None] = lambda status, reason: None,
) -> Listener:
  """Lets signals end the process at once, with one line, until it is closed.

  Python itself would not answer SIGTERM in a container, where the command may
  be process 1.

  Args:
    keeps_running: whether it does where the terminal is lost.
    before: called with the exit status and the line before the end.
  """
  if not hasattr(signal, "SIGHUP"):
    end("this package runs on Linux and macOS; on Windows, use it in WSL 2.", 2)
  open_closed_streams()  # Before the files of this function.

  def answer(number: signal.Signals) -> None:
    if asks_to_stop(number):
      before(stopped_status(number), INTERRUPTION)
      end(INTERRUPTION, stopped_status(number))
    else:
      continue_without_terminal()

  numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  if keeps_running:
    _hangup_stops()  # Asked now, since the terminal may be lost later.
    return Listener(numbers, answer)
  return Listener(numbers[:2], answer)


def asks_to_stop(number: int) -> bool:
  """Whether a signal asks to stop: all do but the loss of the terminal."""
  return number != signal.SIGHUP or _hangup_stops()


def stopped_status(number: signal.Signals) -> int:
  """The exit status of a command that a signal stopped."""
  return INTERRUPTED if number == signal.SIGINT else TERMINATED


@functools.cache
def _hangup_stops() -> bool:
  """Whether SIGHUP asks to stop, as of the first call.

  It does not under nohup, nor where it means that the terminal is lost. A
  process that never had a terminal gets it from an engine.
  """
  if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    return False
  try:
    os.close(os.open("/dev/tty", os.O_RDWR))
  except OSError:
    return True
  return False


def continue_without_terminal() -> None:
  """Continues as under nohup, and says so once; the answer to SIGHUP."""
  drop_unread_output()
  _log_hangup()


@functools.cache
def _log_hangup() -> None:
  logging.warning(
    "SIGHUP: the terminal is gone, and this command continues without it."
  )


def drop_unread_output() -> bool:
  """Discards output that has lost its reader; whether there was any.

  Writing to a closed terminal or pipe would end the command.
  """
  poll = select.poll()
  for descriptor in (1, 2):
    poll.register(descriptor, 0)
  lost = select.POLLERR | select.POLLHUP
  unread = [number for number, events in poll.poll(0) if events & lost]
  for number in unread:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
  return bool(unread)


def open_closed_streams() -> None:
  """Opens the null device in place of standard streams that a shell has closed.

  After `>&-` the next file that is opened would take the stream's number, and
  get what is printed.
  """
  for number, name in enumerate(("stdin", "stdout", "stderr")):
    try:
      os.fstat(number)
    except OSError:
      # The lowest number that is free, so that of the stream.
      os.open(os.devnull, os.O_RDWR)
    if getattr(sys, name) is None:
      mode = "r" if name == "stdin" else "w"
      setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def end(message: str, status: int = INTERRUPTED) -> NoReturn:
  """Ends the process at once, with one line."""
  line = f"error: {message}\n"
  os.write(2, line.encode(errors="backslashreplace"))
  os._exit(status)
