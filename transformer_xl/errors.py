"""Errors that end in one line: a user's to mend, or the machine's."""

import errno
import os

# What a disk or its owner refuses, whatever library it was that asked.
_REFUSALS = tuple(
  os.strerror(code)
  for code in (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
  )
)


class UserError(Exception):
  """A mistake in a command, a config or a file; the text names the fix.

  `main` prints the text as one line and exits with status 2; every other
  exception but those of `refusal` is a bug and keeps its traceback.
  """


class DivergenceError(Exception):
  """The loss is no number any more; the text says what to resume from."""


def refusal(error: BaseException) -> str | None:
  """What the machine refused, if that is why: a full disk, another's folder.

  Returns:
    One line for people; None if the error has another reason.
  """
  cause: BaseException | None = error
  while cause is not None:
    text = " ".join(str(cause).split())
    for reason in _REFUSALS:
      if reason in text:
        path = getattr(cause, "filename", None)
        where = f" at {path}" if path else ""
        return (
          f"{reason}{where}; mend that and run the same command again, which "
          "goes on from the last whole checkpoint."
        )
    cause = cause.__cause__ or cause.__context__
  return None
