"""Errors that end in one line: a user's mistake, or the machine's refusal."""

import errno
import os

# Refusals of the file system, whichever library made the call.
_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_REFUSALS = tuple(map(os.strerror, _CODES))


class UserError(Exception):
  """A mistake in a command, a configuration or a file; the text names the fix.

  `command_line` prints the text as one line and exits with status 2.
  """


class DivergenceError(Exception):
  """The loss diverged; the text says what to resume from."""


def refusal(error: BaseException | None) -> str | None:
  """One line on an error whose cause is a full disk or a missing permission.

  None if the error has another cause.
  """
  while error is not None:
    text = " ".join(str(error).split())
    for reason in _REFUSALS:
      if reason in text:
        path = getattr(error, "filename", None)
        where = f" at {path}" if path else ""
        return (
          f"{reason}{where}; fix that and run the same command again: "
          "training resumes from its last complete checkpoint."
        )
    error = error.__cause__ or error.__context__
  return None
