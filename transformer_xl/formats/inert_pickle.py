"""Pickles read as data: no class is looked up and nothing is run.

Every class or function that a pickle names becomes a placeholder of that name.
What the pickle would have passed to it, set on it or put into it is kept, for
callers that know what it means.
"""

import io
import os
import pickle
import pickletools
from collections.abc import Callable
from typing import IO
from typing import Any
from typing import BinaryIO
from typing import cast

from transformer_xl import errors

# What a damaged or hostile stream makes the standard reader raise.
FAILURES = (
  pickle.UnpicklingError,
  ArithmeticError,
  AttributeError,
  EOFError,
  ImportError,
  LookupError,
  RecursionError,
  TypeError,
  ValueError,
)


class Inert:
  """Stands for whatever a pickled class or function would have made."""

  origin = ""  # Module and name.
  arguments: tuple[Any, ...]
  state: Any
  contents: list[Any]  # Items that were appended or set.

  def __new__(cls, *arguments: Any, **_: Any) -> "Inert":
    """Keeps the arguments, whichever way the pickle hands them over."""
    self = super().__new__(cls)
    self.arguments = arguments
    self.state = None
    self.contents = []
    return self

  def __init__(self, *_: Any, **__: Any) -> None:
    pass

  def __setstate__(self, state: Any) -> None:
    self.state = state

  def __setitem__(self, key: Any, value: Any) -> None:
    self.contents.append((key, value))

  def append(self, value: Any) -> None:
    """Called for each item of a pickled list."""
    self.contents.append(value)


class _Reader(pickle.Unpickler):
  """The standard reader with everything that could run replaced."""

  def __init__(self, file, persistent: Callable[[Any], Any] | None):
    # Strings of Python 2 stay bytes: they may be text or an array's values.
    super().__init__(file, encoding="bytes")
    self._persistent = persistent

  def find_class(self, module, name):
    return type(name, (Inert,), {"origin": f"{module}.{name}"})

  def persistent_load(self, pid):
    if self._persistent is None:
      raise pickle.UnpicklingError("a reference to another file")
    return self._persistent(pid)


def load(
  file: BinaryIO | bytes,
  path: str,
  *,
  persistent: Callable[[Any], Any] | None = None,
) -> Any:
  """Reads one pickle.

  Args:
    file: opened for reading, or its content; reading stops after the pickle.
    path: for errors.
    persistent: what becomes of references to data outside the pickle.

  Raises:
    UserError: the file is no pickle, or is truncated.
  """
  stream = io.BytesIO(file) if isinstance(file, bytes) else file
  try:
    _check_numbers(stream)
    return _Reader(stream, persistent).load()
  except FAILURES:
    raise errors.UserError(
      f"{path} is truncated or is not a file that Python pickled; copy it "
      "again, or name another --source."
    ) from None


class _Bounded:
  """A file that is asked for no more than it has, however much is claimed."""

  def __init__(self, stream: BinaryIO):
    at = stream.tell()
    self.size = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    self._stream = stream
    self.readline = stream.readline
    self.tell = stream.tell

  def read(self, count: int) -> bytes:
    return self._stream.read(min(count, self.size - self._stream.tell()))


def _check_numbers(stream: BinaryIO) -> None:
  """Refuses sizes beyond the file's, for which room would be made first.

  Numbers of memorised objects count up by one for some bytes each.
  """
  start = stream.tell()
  bounded = _Bounded(stream)
  for opcode, argument, _ in pickletools.genops(cast(IO[bytes], bounded)):
    argument = cast(int, argument)
    is_put = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
    if is_put and argument > stream.tell() - start + 256:
      raise ValueError("a number that no pickler gives")
    if opcode.name == "FRAME" and argument > bounded.size:
      raise ValueError("a frame longer than the file")
  stream.seek(start)


def text(value: Any) -> Any:
  """Strings of Python 2 as text; anything else as it is."""
  return value.decode("utf-8") if isinstance(value, bytes) else value


def mapping(value: Any) -> dict[Any, Any]:
  """A pickled dict, OrderedDict or Counter; or an object's attributes.

  Of anything else it is empty.
  """
  if isinstance(value, dict):
    return {text(key): item for key, item in value.items()}
  if not isinstance(value, Inert):
    return {}
  if value.origin.startswith("collections."):
    items = value.arguments[0] if value.arguments else ()
    pairs = items.items() if isinstance(items, dict) else items
    return {text(key): item for key, item in [*pairs, *value.contents]}
  return mapping(value.state)
