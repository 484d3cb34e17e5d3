"""Lines of the log: the time, what is more than information, and the text."""

import logging as stdlib_logging
import re
import signal
import sys
import threading
import types

from absl import logging

_REPEATED_AFTER_SECONDS = 0.1


def start() -> None:
  """Formats the lines of this process and drops what libraries say."""
  logging.get_absl_handler().addFilter(is_not_noise)
  logging.get_absl_handler().addFilter(_label)
  format_log()
  sys.unraisablehook = _print_unraisable


def format_log(process: int | None = None) -> None:
  """Starts log lines with the time, and the number of one of many processes."""
  number = "" if process is None else f"[{process}] "
  logging.get_absl_handler().setFormatter(
    stdlib_logging.Formatter(
      f"%(asctime)s {number}%(label)s%(message)s", "%H:%M:%S"
    )
  )


def is_not_noise(record: stdlib_logging.LogRecord) -> bool:
  """Drops what libraries log about themselves, but keeps their warnings.

  Orbax logs about fifty lines for each save, and warns of what is intended.
  Errors that they log with a traceback are raised as well. So is the first of
  the errors of a save's parts, of which asyncio logs those that nobody awaits.
  """
  if record.name == "asyncio" and "never retrieved" in record.getMessage():
    return False
  if not re.search(r"/(orbax|jax|fsspec|gcsfs)/", record.pathname):
    return True
  intended = r"did not provide metrics|read_only=True|is read only"
  is_intended = re.search(intended, record.getMessage())
  return record.levelname != "INFO" and not (is_intended or record.exc_info)


def _label(record: stdlib_logging.LogRecord) -> bool:
  """Marks what is more than information."""
  level = record.levelname.lower()
  record.label = "" if record.levelno <= stdlib_logging.INFO else f"{level}: "
  return True


def _print_unraisable(problem: "sys.UnraisableHookArgs") -> None:
  """Prints what no code can catch, with two exceptions.

  After a save that failed, Tensorstore tells the end of other writes to a loop
  that is closed. And Ctrl-C would be lost if it arrives in a callback, such as
  JAX's at garbage collection: it is repeated until other code receives it.
  """
  if problem.exc_type is KeyboardInterrupt:
    _repeat_interrupt()
  elif str(problem.exc_value) != "Event loop is closed":
    sys.__unraisablehook__(problem)


def _repeat_interrupt() -> None:
  """Sends SIGINT to the main thread until Python has called its handler.

  One signal is not enough. If it comes just before the main thread begins to
  wait, Python would call the handler when that wait is over; the next one ends
  the wait.
  """
  handler = signal.getsignal(signal.SIGINT)
  is_received = threading.Event()

  def receive(number: int, frame: types.FrameType | None) -> None:
    is_received.set()
    signal.signal(signal.SIGINT, handler)
    if callable(handler):
      handler(number, frame)

  def send() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None  # It has started.
    while not is_received.wait(_REPEATED_AFTER_SECONDS):
      signal.pthread_kill(main_thread, signal.SIGINT)

  signal.signal(signal.SIGINT, receive)
  threading.Thread(target=send, daemon=True).start()
