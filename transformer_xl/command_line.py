"""How every command starts and ends: flags, help, one line for a mistake."""

import contextlib
import logging as stdlib_logging
import os
import re
import select
import sys
from collections.abc import Callable
from collections.abc import Iterator

from absl import app
from absl import flags
from absl import logging

from transformer_xl import errors

_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}


def describe(argv: list[str]) -> str:
  """The docstring of the command's module, and its flags."""
  del argv
  documentation = sys.modules["__main__"].__doc__ or ""
  return f"{documentation.strip()}\n{flags.FLAGS.main_module_help()}"


def run(
  main: Callable[[list[str]], None],
  *,
  parse: Callable[[list[str]], list[str]] = flags.FLAGS,
  describe: Callable[[list[str]], str] = describe,
  quiet: bool = True,
) -> None:
  """Runs a command and ends the process.

  The exit status is 0 for `--help`, 2 after a user's mistake, 1 after
  divergence or where the machine refuses, 130 after Ctrl-C. Other exceptions
  are bugs and keep their traceback.

  Args:
    main: takes the arguments that are not flags.
    parse: parses the flags of a command line and returns the other arguments.
    describe: makes the text of `--help` from a command line without it.
    quiet: log errors only.
  """

  def parse_or_help(argv: list[str]) -> list[str]:
    rest = [word for word in argv if word not in _HELP]
    with _one_line():
      if rest == argv:
        return parse(argv)
      print(describe(rest), flush=True)
    sys.exit(0)

  def guarded(argv: list[str]) -> None:
    logging.get_absl_handler().addFilter(_is_not_noise)
    if quiet:
      logging.set_verbosity(logging.ERROR)
    with _one_line():
      main(argv)
      sys.stdout.flush()

  app.run(guarded, flags_parser=parse_or_help)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
  """Ends the process with one line unless the program itself is wrong."""
  try:
    yield
  except (errors.UserError, flags.Error) as error:
    message, status = str(error), 2
  except errors.DivergenceError as error:
    message, status = str(error), 1
  except KeyboardInterrupt:
    message, status = "interrupted; the same command starts it again.", 130
  except BrokenPipeError:
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if not poll.poll(0):  # Standard output still has a reader.
      raise
    # Python flushes once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    sys.exit(1)
  except Exception as error:
    message, status = errors.refusal(error) or "", 1
    if (
      not message and isinstance(error, OSError) and error.filename is not None
    ):
      fix = "fix that and run the same command again."
      message = f"cannot use {error.filename}: {error.strerror}; {fix}"
      status = 2
    if not message:
      raise
  else:
    return
  print(f"error: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(status)


def _is_not_noise(record: stdlib_logging.LogRecord) -> bool:
  """Drops what libraries log about themselves, but keeps their warnings.

  Orbax logs about fifty lines for each save, and warns of what is intended.
  """
  if not re.search(r"/(orbax|jax)/", record.pathname):
    return True
  intended = r"did not provide metrics|read_only=True|is read only"
  is_intended = re.search(intended, record.getMessage())
  return record.levelname != "INFO" and not is_intended
