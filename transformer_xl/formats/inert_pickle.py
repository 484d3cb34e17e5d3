"""Reads pickles as data: no class is looked up and no code is run.

Every class or function that a pickle names becomes a placeholder of that name,
which records its arguments, state and items for callers that understand them.
"""

import io
import os
import pickle
import pickletools
import types
from collections.abc import Callable
from typing import Any
from typing import BinaryIO

from transformer_xl import errors

# Exceptions of the standard reader on a damaged or hostile stream.
FAILURES = (
  *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError),
  *(ImportError, LookupError, RecursionError, TypeError, ValueError),
)


class Inert:
  """Placeholder for the result of a pickled class or function."""

  origin = ""  # Module and name.
  arguments: tuple[Any, ...]
  state: Any
  contents: list[Any]  # Items that were appended or set.

  def __new__(cls, *arguments: Any, **_: Any) -> "Inert":
    """Records positional arguments, however the pickle passes them."""
    self = super().__new__(cls)
    self.arguments, self.state, self.contents = arguments, None, []
    return self

  def __setstate__(self, state: Any) -> None:
    self.state = state

  def __setitem__(self, key: Any, value: Any) -> None:
    self.contents.append((key, value))

  def append(self, value: Any) -> None:
    """Called for each item of a pickled list."""
    self.contents.append(value)


class _Reader(pickle.Unpickler):
  """The standard reader, with placeholders for everything that could run."""

  def __init__(self, file, persistent: Callable[[Any], Any] | None):
    # Python 2 strings stay bytes: they may be text or values of an array.
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
  """Reads one pickle from an open file or bytes, and nothing after it.

  `persistent` resolves references to data outside it; errors name the path.

  Raises:
    UserError: the file is not a pickle, or is truncated.
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


def _check_numbers(stream: BinaryIO) -> None:
  """Rejects sizes beyond the file's, which the reader would allocate.

  Reads here never request more bytes than the file has. Memo indices rise by
  one, and each takes some bytes, so a larger one is damage.
  """
  start = stream.tell()
  size = stream.seek(0, os.SEEK_END)
  stream.seek(start)
  bounded: Any = types.SimpleNamespace(
    read=lambda count: stream.read(min(count, size - stream.tell())),
    readline=stream.readline,
    tell=stream.tell,
  )
  for opcode, number, _ in pickletools.genops(bounded):
    is_put = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
    limit = stream.tell() - start + 256 if is_put else size
    if (is_put or opcode.name == "FRAME") and (number or 0) > limit:
      raise ValueError("a number that no pickler gives")
  stream.seek(start)


def text(value: Any) -> Any:
  """Decodes Python 2 strings; returns anything else unchanged."""
  return value.decode("utf-8") if isinstance(value, bytes) else value


def mapping(value: Any) -> dict[Any, Any]:
  """Returns a pickled mapping, or an object's attributes; empty otherwise."""
  if isinstance(value, dict):
    return {text(key): item for key, item in value.items()}
  if not isinstance(value, Inert):
    return {}
  if value.origin.startswith("collections."):
    items = value.arguments[0] if value.arguments else ()
    pairs = items.items() if isinstance(items, dict) else items
    return {text(key): item for key, item in [*pairs, *value.contents]}
  return mapping(value.state)
