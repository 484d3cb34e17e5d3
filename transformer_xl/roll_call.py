"""Which of the processes of a run are still there.

When a process is killed, the others fail with whatever error the library at
work has for a lost connection: Gloo has a ValueError, as a damaged file has. So
errors do not tell. The process that fails asks, and a thread of each process
that is there answers, also while that process computes or waits.
"""

import atexit
import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from transformer_xl import errors

_POLL_SECONDS = 0.5
# An answer is late where a library at work holds up all of Python.
_ANSWER_SECONDS = 10.0
# Folders of keys in JAX's coordination service. A key ends in the number of a
# process, that of a call in the name of the call.
_JOINED = "transformer_xl/roll_call/joined/"
_LEFT = "transformer_xl/roll_call/left/"
_CALLS = "transformer_xl/roll_call/calls/"
_ANSWERS = "transformer_xl/roll_call/answers/"


class _Service(Protocol):
  """What is used of JAX's client; a RuntimeError without process 0."""

  def key_value_set(
    self, key: str, value: str, allow_overwrite: bool = False
  ) -> None: ...

  def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]: ...


def start() -> None:
  """Answers calls from now on; for a process that has joined others.

  At its end the process says that it leaves, and is not missed then.
  """
  service = _service()
  number = _number()
  is_over = threading.Event()

  def answer() -> None:
    answered = set()
    while not is_over.wait(_POLL_SECONDS):
      try:
        for call, _ in service.key_value_dir_get(_CALLS):
          if call not in answered:
            name = call.removeprefix(_CALLS)
            service.key_value_set(f"{_ANSWERS}{name}/{number}", "")
            answered.add(call)
      except RuntimeError:
        return  # JAX ends a process that has lost process 0.

  service.key_value_set(f"{_JOINED}{number}", "")
  thread = threading.Thread(target=answer, daemon=True)
  thread.start()

  def end() -> None:
    leave()
    is_over.set()
    thread.join()  # Python must not end while a thread is inside JAX.

  atexit.register(end)


def leave() -> None:
  """Tells the others that this process ends by itself."""
  if is_one_of_several():
    with contextlib.suppress(RuntimeError):
      _service().key_value_set(f"{_LEFT}{_number()}", "", allow_overwrite=True)


def is_one_of_several() -> bool:
  """Whether this process has joined others."""
  jax = sys.modules.get("jax")
  if jax is None or not jax.distributed.is_initialized():
    return False
  return jax.process_count() > 1


def missing() -> list[int]:
  """The numbers of the processes that have ended without leaving.

  It takes half a second if none is missing, and ten if one is.
  """
  if not is_one_of_several():
    return []
  service = _service()
  name = secrets.token_hex(8)

  def numbers(folder: str) -> set[int]:
    keys = [key for key, _ in service.key_value_dir_get(folder)]
    return {int(key.removeprefix(folder)) for key in keys}

  deadline = time.monotonic() + _ANSWER_SECONDS
  try:
    service.key_value_set(_CALLS + name, "")
    others = numbers(_JOINED) - {_number()}
    while True:
      absent = others - numbers(f"{_ANSWERS}{name}/") - numbers(_LEFT)
      if not absent or time.monotonic() > deadline:
        return sorted(absent)
      time.sleep(_POLL_SECONDS / 5)
  except RuntimeError:
    return [0]


@contextlib.contextmanager
def on_failure() -> Iterator[None]:
  """Asks who is missing if the block fails, since that may be the cause.

  For what processes do together. It stands inside of what takes other errors
  for damage or refusals, and of what waits for the other processes at its end.

  Raises:
    LostProcessError: in place of the error of the block, if one is missing.
  """
  try:
    yield
  except (errors.UserError, errors.LostProcessError, errors.StoppedError):
    raise
  except Exception as error:  # JAX, Gloo and Orbax have no common type.
    lost = missing()
    if not lost:
      raise
    names = " and ".join(map(str, lost))
    subject = (
      f"process {names} is" if len(lost) == 1 else f"processes {names} are"
    )
    reason = " ".join(str(error).split())[:100]
    raise errors.LostProcessError(
      f"{subject} gone ({type(error).__name__}: {reason}); the same command in "
      "all processes continues from the last whole checkpoint."
    ) from error


def _service() -> _Service:
  from jax._src import distributed  # JAX has no public name for it.

  service = distributed.global_state.client
  assert service is not None  # Asked for by one of several only.
  return service


def _number() -> int:
  import jax

  return jax.process_index()
