"""Lines of the log: the time, what is more than information, and the text."""

import logging as stdlib_logging
import re
import signal
import sys
import threading

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
  Errors that they log with a traceback are raised as well.
  """
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


def _print_unraisable(problem) -> None:
  """Prints what no code can catch, with two exceptions.

  After a save that failed, Tensorstore tells the end of other writes to a loop
  that is closed. And Ctrl-C would be lost if it arrives in a callback, such as
  JAX's at garbage collection: it is repeated until other code receives it.
  """
  if problem.exc_type is KeyboardInterrupt:
    # To the main thread: another one would not end what that waits for.
    repeat = (threading.main_thread().ident, signal.SIGINT)
    timer = threading.Timer(
      _REPEATED_AFTER_SECONDS, signal.pthread_kill, repeat
    )
    timer.start()
  elif str(problem.exc_value) != "Event loop is closed":
    sys.__unraisablehook__(problem)
