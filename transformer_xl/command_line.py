"""How commands beside `main` end: a user's mistake is one line."""

import sys
from collections.abc import Callable
from typing import NoReturn

from absl import app
from absl import flags
from absl import logging

from transformer_xl import errors


def run(main: Callable[[list[str]], None]) -> None:
  """Runs a command; the exit status after a user's mistake is 2."""

  def guarded(argv: list[str]) -> None:
    logging.set_verbosity(logging.ERROR)  # Orbax tells of each of its steps.
    try:
      main(argv)
    except errors.UserError as error:
      _exit(str(error))
    except OSError as error:
      _exit(f"{error}; mend that and run the same command again.")

  app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv: list[str]) -> list[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    _exit(str(error))
  except SystemExit:  # absl ends --help with 1, as if it had failed.
    sys.exit(0)


def _exit(message: str) -> NoReturn:
  print(f"error: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(2)
