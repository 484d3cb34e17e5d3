"""Pickles read as data: no class is looked up and nothing is run.

Every class or function that a pickle names becomes a placeholder of that name.
What the pickle would have passed to it, set on it or put into it is kept, for
callers that know what it means.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any
from typing import BinaryIO

from transformer_xl import errors

# What a damaged or hostile stream makes the standard reader raise.
FAILURES = (
  pickle.UnpicklingError,
  ArithmeticError,
  AttributeError,
  EOFError,
  ImportError,
  LookupError,
  MemoryError,
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

  def __new__(cls, *arguments, **_):
    """Keeps the arguments, whichever way the pickle hands them over."""
    self = super().__new__(cls)
    self.arguments = arguments
    self.state = None
    self.contents = []
    return self

  def __init__(self, *_, **__):
    pass

  def __setstate__(self, state):
    self.state = state

  def __setitem__(self, key, value):
    self.contents.append((key, value))

  def append(self, value):
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
    return _Reader(stream, persistent).load()
  except FAILURES:
    raise errors.UserError(
      f"{path} is truncated or is not a file that Python pickled; copy it "
      "again, or name another --source."
    ) from None


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
