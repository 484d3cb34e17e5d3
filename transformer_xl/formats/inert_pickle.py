"""Reads pickles as data: no class is looked up and no code is run.

Every class or function that a pickle names becomes a placeholder of that name,
which records its arguments, state and items for callers that understand them.
"""

import io
import os
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple, cast

from transformer_xl import errors

# Exceptions of the standard reader on a damaged or hostile stream.
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
# A hash of many more would overflow Python's stack.
_MOST_NESTED_TUPLES = 100


Pickled = Any  # Whatever a pickle holds, with placeholders.
Fields = dict[str | float, Pickled]


class Inert:
  """Placeholder for the result of a pickled class or function."""

  origin = ""  # Module and name.
  arguments: tuple[Pickled, ...]
  state: Pickled
  contents: list[Pickled]  # Items that were appended or set.

  def __new__(cls, *arguments: Pickled, **_: Pickled) -> "Inert":
    """Records positional arguments, however the pickle passes them."""
    self = super().__new__(cls)
    self.arguments = arguments
    self.state = None
    self.contents = []
    return self

  def __setstate__(self, state: Pickled) -> None:
    self.state = state

  def __setitem__(self, key: Pickled, value: Pickled) -> None:
    self.contents.append((key, value))

  def append(self, value: Pickled) -> None:
    """Called for each item of a pickled list."""
    self.contents.append(value)


class _Part(NamedTuple):
  """What a hash of an object on the reader's stack would visit."""

  cost: int = 1  # Objects.
  depth: int = 0  # Of tuples in tuples.


_OBJECT = _Part()


class _Bounded:
  """A stream whose reads request no more bytes than are left."""

  def __init__(self, stream: BinaryIO, size: int):
    self._stream = stream
    self._size = size

  def read(self, count: int) -> bytes:
    return self._stream.read(min(count, self._size - self._stream.tell()))

  def readline(self) -> bytes:
    return self._stream.readline()

  def tell(self) -> int:
    return self._stream.tell()


class _Reader(pickle.Unpickler):
  """The standard reader, with placeholders for everything that could run."""

  def __init__(
    self, file: BinaryIO, persistent: Callable[[Pickled], Pickled] | None
  ):
    # Python 2 strings stay bytes: they may be text or values of an array.
    super().__init__(file, encoding="bytes")
    self._persistent = persistent

  def find_class(self, module: str, name: str) -> type[Inert]:
    return type(name, (Inert,), {"origin": f"{module}.{name}"})

  def persistent_load(self, pid: Pickled) -> Pickled:
    if self._persistent is None:
      raise pickle.UnpicklingError("a reference to another file")
    return self._persistent(pid)


def load(
  file: BinaryIO | bytes,
  path: str,
  *,
  persistent: Callable[[Pickled], Pickled] | None = None,
) -> Pickled:
  """Reads one pickle from an open file or bytes, and nothing after it.

  `persistent` resolves references to data outside it; errors name the path.

  Raises:
    UserError: the file is not a pickle, or is truncated.
  """
  stream = io.BytesIO(file) if isinstance(file, bytes) else file
  try:
    _check(stream)
    return _Reader(stream, persistent).load()
  except FAILURES:
    raise errors.UserError(
      f"{path} is truncated or is not a file that Python pickled; copy it "
      "again, or name another --source."
    ) from None


def _check(stream: BinaryIO) -> None:
  """Rejects what would take the reader's memory, time or stack.

  It follows the stack and the memo of the reader, but makes no objects. Numbers
  may not exceed what the file has: reads here never request more bytes than
  are left, and memo indices rise by one, each of which takes some bytes. The
  hash of a tuple visits all tuples in it, shared ones each time, so that 30
  tuples can keep it busy for ever.
  """
  start = stream.tell()
  size = stream.seek(0, os.SEEK_END)
  stream.seek(start)
  # `genops` calls no other methods of a file.
  bounded = cast("BinaryIO", _Bounded(stream, size))
  stack: list[_Part] = []
  marks: list[int] = []  # Lengths of the stack.
  memo: dict[int | None, _Part] = {}
  num_hashed = 0
  for opcode, argument, _ in pickletools.genops(bounded):
    name = opcode.name
    is_put = name in ("PUT", "BINPUT", "LONG_BINPUT")
    limit = stream.tell() - start + 256 if is_put else size
    if (is_put or name == "FRAME") and (argument or 0) > limit:
      raise ValueError("a number that no pickler gives")

    # Most operations put an object on the stack, or into the memo.
    if is_put:
      memo[argument] = stack[-1]
      continue
    if name == "MEMOIZE":
      memo[len(memo)] = stack[-1]
      continue
    if name == "MARK":
      marks.append(len(stack))
      continue
    if name in ("GET", "BINGET", "LONG_BINGET"):
      stack.append(memo[argument])
      continue
    if not opcode.stack_before:
      stack += [_OBJECT] * len(opcode.stack_after)
      continue

    # Others take some objects, and all above a mark if they need one.
    taken = list(opcode.stack_before)
    above: list[_Part] = []
    if pickletools.markobject in taken:
      mark = marks.pop()
      above = stack[mark:]
      del stack[mark:]
      taken = taken[: taken.index(pickletools.markobject)]
    elif name == "POP" and marks and marks[-1] == len(stack):
      marks.pop()
      continue
    below = [stack.pop() for _ in taken][::-1]
    made = [_OBJECT] * len(opcode.stack_after)
    if name == "DUP":
      made = [*below, *below]
    elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"):
      parts = [*below, *above]
      cost = 1 + sum(part.cost for part in parts)
      depth = 1 + max((part.depth for part in parts), default=0)
      if depth > _MOST_NESTED_TUPLES:
        raise ValueError("tuples in tuples")
      made = [_Part(cost, depth)]
    stack += made

    # What is a key, or an element of a set.
    hashed: list[_Part] = []
    if name == "SETITEM":
      hashed = below[1:2]
    elif name in ("SETITEMS", "DICT"):
      hashed = above[::2]
    elif name in ("ADDITEMS", "FROZENSET"):
      hashed = above
    num_hashed += sum(part.cost for part in hashed)
    if num_hashed > 10 * size + 10_000:
      raise ValueError("keys that take for ever")
  stream.seek(start)


def text(value: Pickled) -> Pickled:
  """Decodes Python 2 strings; returns anything else unchanged."""
  return value.decode("utf-8") if isinstance(value, bytes) else value


def mapping(value: Pickled) -> Fields:
  """Returns a pickled mapping, or an object's attributes; empty otherwise.

  Keys other than text and numbers are left out. Nothing bounds the time that
  the hash of a tuple takes.
  """
  if isinstance(value, dict):
    return _with_simple_keys(value.items())
  if not isinstance(value, Inert):
    return {}
  if value.origin.startswith("collections."):
    items = value.arguments[0] if value.arguments else ()
    pairs = items.items() if isinstance(items, dict) else items
    return _with_simple_keys([*pairs, *value.contents])
  return mapping(value.state)


def _with_simple_keys(pairs: Iterable[tuple[Pickled, Pickled]]) -> Fields:
  return {
    text(key): item
    for key, item in pairs
    if isinstance(key, str | bytes | int | float)
  }
