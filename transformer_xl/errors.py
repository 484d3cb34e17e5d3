"""Errors that end in one line: a user's mistake, or the machine's refusal."""

import contextlib
import errno
import importlib.util
import os
import signal
import traceback
from collections.abc import Iterator

# Refusals of the file system, whichever library made the call.
_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_REFUSALS = tuple(map(os.strerror, _CODES))
_SETTINGS_OF_JAX = os.path.join("jax", "_src", "config.py")


class UserError(Exception):
  """A mistake in a command, a configuration or a file; the text names the fix.

  `command_line` prints the text as one line and exits with status 2.
  """


class DivergenceError(Exception):
  """The loss diverged; the text says what to resume from."""


class WrongResultError(Exception):
  """The devices compute something else than they should; `--mode=check`."""


class LostProcessError(Exception):
  """Another process of the run has ended, so that this one cannot go on.

  Attributes:
    status: the exit status of the other process; 1 if it was killed.
  """

  def __init__(self, text: str, status: int = 1):
    super().__init__(text)
    self.status = status


class UnreadableError(Exception):
  """A checkpoint was written and cannot be read back."""


class StoppedError(Exception):
  """A signal stopped a run on a checkpoint; the log says how to continue.

  `command_line` ends with a status that an engine takes as "run it again".
  """

  def __init__(self, number: signal.Signals):
    super().__init__(f"{number.name} stopped the run on a checkpoint")
    self.number = number


def refusal(error: BaseException | None) -> str | None:
  """One line on an error whose cause is a full disk or a missing permission.

  None if the error has another cause.
  """
  folder = getattr(error, "written_folder", None)
  while error is not None:
    text = " ".join(str(error).split())
    for reason in _REFUSALS:
      if reason in text:
        # Of two paths, as a copy has them, the second is written to.
        path = getattr(error, "filename2", None)
        path = path or getattr(error, "filename", None) or folder
        where = f" at {path}" if path else ""
        return f"{reason}{where}; fix that and run the same command again."
    error = error.__cause__ or error.__context__
  return None


@contextlib.contextmanager
def writing_to(folder: str) -> Iterator[None]:
  """Lets `refusal` name a folder for errors that name no file of their own."""
  try:
    yield
  except Exception as error:
    if not hasattr(error, "written_folder"):  # Of a block within this one.
      error.written_folder = folder  # type: ignore[attr-defined]
    raise


def misread_variable(error: BaseException | None) -> str | None:
  """One line on a variable of the environment whose value JAX refused.

  JAX reads its settings where it is imported. None if the error is another.
  """
  given = [name for name in os.environ if name.startswith("JAX_")]
  while error is not None:
    frames = traceback.extract_tb(error.__traceback__)
    if frames and frames[-1].filename.endswith(_SETTINGS_OF_JAX):
      words = str(error).upper().replace("'", " ").split()
      for name in given:
        if name in words:
          return (
            f"JAX refuses {name}={os.environ[name]!r} of the environment; "
            "unset it, or give it a value that JAX's documentation lists."
          )
    error = error.__cause__ or error.__context__
  return None


def is_shortage(error: BaseException) -> bool:
  """Whether a device or the machine had too little memory.

  JAX says it in several ways, all of them as a RuntimeError.
  """
  if isinstance(error, MemoryError):
    return True
  text = str(error)
  is_said = "RESOURCE_EXHAUSTED" in text or "Out of memory" in text
  return isinstance(error, RuntimeError) and is_said


def install(extra: str) -> str:
  """The command that installs what an extra of this package needs."""
  return f"pip install --constraint requirements.lock -e '.[{extra}]'"


def bucket(path: str) -> str:
  """The address of the bucket of an address."""
  return "/".join(path.split("/")[:3])


@contextlib.contextmanager
def of_bucket(
  action: str, path: str, *, unless: type[Exception] = FileExistsError
) -> Iterator[None]:
  """Turns what a bucket refuses into a UserError; for a path on disk, nothing.

  Args:
    action: what the block does with the path, as in "cannot read".
    path: a folder or a file.
    unless: an error that the caller handles.
  """
  if not path.startswith("gs://"):
    yield
    return
  if importlib.util.find_spec("gcsfs") is None:
    raise UserError(
      f"{path} is in a bucket, which needs the package gcsfs: {install('gcs')}"
    )
  try:
    yield
  except (UserError, LostProcessError, UnreadableError, unless):
    raise
  except FileNotFoundError as error:
    raise UserError(
      f"cannot {action} {path}: there is no such bucket or file; check the "
      "name, or create the bucket: gcloud storage buckets create "
      f"{bucket(path)}"
    ) from error
  except Exception as error:  # The libraries have no common type.
    raise UserError(_refused(action, path, error)) from error


def _refused(action: str, path: str, error: Exception) -> str:
  """One line on what a bucket refused, and what helps."""
  text = str(error)
  first, _, rest = text.partition("\n")
  if first.startswith("Forbidden: ") and rest:  # Behind the address.
    text = f"Forbidden: {rest}"
  text = " ".join(text.split())[:240] or type(error).__name__
  cause = f"cannot {action} {path} ({text}):"
  status = getattr(error, "code", None)
  if "Anonymous caller" in text or status in (401, "401"):
    return f"{cause} log in with `gcloud auth application-default login`."
  is_forbidden = text.startswith(("Forbidden", "PERMISSION_DENIED"))
  if is_forbidden or status in (403, "403"):
    return (
      f"{cause} this account needs the role roles/storage.objectUser for "
      f"{bucket(path)}."
    )
  return f"{cause} run the same command again when the storage answers."
