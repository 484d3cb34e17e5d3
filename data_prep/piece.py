"""Pieces: a text as a stream of byte strings of a megabyte or so.

Whole corpora need not fit in memory; a piece does. Pieces end where no word
is cut in two, so they can be encoded one by one.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

from transformer_xl import errors

_BLOCK = 1 << 20
# A line is cut at white space, and a word anywhere, only beyond this length.
_LONGEST = 4 << 20


class Readable(Protocol):
  """A file open for reading bytes."""

  def read(self, size: int, /) -> bytes:
    """Returns at most `size` bytes; none at the end."""


class Piece(NamedTuple):
  """Some consecutive bytes of one file."""

  data: bytes
  starts_document: bool
  origin: str  # The file, for messages.
  offset: int  # Where in the file `data` starts.


def cut(
  stream: Readable,
  *,
  origin: str,
  offset: int = 0,
) -> Iterator[Piece]:
  """Yields a stream as a document, cut at ends of lines where there are any.

  Args:
    stream: The text from here on.
    origin: The file's name, for messages.
    offset: Where in the file the stream stands.
  """
  buffer, starts_document = b"", True
  while block := stream.read(_BLOCK):
    buffer += block
    if end := _boundary(buffer):
      yield Piece(buffer[:end], starts_document, origin, offset)
      starts_document = False
      offset += end
      buffer = buffer[end:]
  if buffer:
    yield Piece(buffer, starts_document, origin, offset)


def stretch(
  stream: Readable, start: int, stop: int, *, origin: str
) -> Iterator[Piece]:
  """Yields the bytes of a stream from start to stop, as one document."""
  position = 0
  while position < start and (
    block := stream.read(min(_BLOCK, start - position))
  ):
    position += len(block)
  limited = _Limited(stream, stop - start)
  return cut(limited, origin=origin, offset=start)


def separated(
  pieces: Iterator[Piece], *, final_newline: bool
) -> Iterator[Piece]:
  """Yields the pieces with a newline after every document that lacks one.

  Args:
    pieces: The text; a document may be several pieces.
    final_newline: Whether that goes for the last document, too.
  """
  last = None
  for piece in pieces:
    if last is not None:
      yield _ended(last) if piece.starts_document else last
    last = piece
  if last is not None:
    yield _ended(last) if final_newline else last


def documents(pieces: Iterable[Piece]) -> Iterator[bytes]:
  """Yields whole documents."""
  parts: list[bytes] = []
  for piece in pieces:
    if piece.starts_document and parts:
      yield b"".join(parts)
      parts = []
    parts.append(piece.data)
  if parts:
    yield b"".join(parts)


def text(piece: Piece) -> str:
  """Returns a piece as text; UserError with the place where it is no UTF-8."""
  try:
    return piece.data.decode("utf-8")
  except UnicodeDecodeError as error:
    raise errors.UserError(
      f"{piece.origin} is not UTF-8: byte 0x{piece.data[error.start]:02x} at"
      f" offset {piece.offset + error.start}; convert it, for example with"
      " iconv -t UTF-8, or use --tokenizer=byte."
    ) from None


def refuse_cut_word(piece: Piece) -> None:
  """Raises UserError if the piece ends within a word too long to be one."""
  if len(piece.data) > _LONGEST - 4 and not piece.data[-1:].isspace():
    raise errors.UserError(
      f"{piece.origin} has no white space in the {len(piece.data)} bytes from"
      f" offset {piece.offset}, so it is no text of words; use"
      " --tokenizer=byte or --tokenizer=character."
    )


class _Limited:
  """The first bytes of a stream, as a stream."""

  def __init__(self, stream: Readable, size: int):
    self._stream = stream
    self._left = size

  def read(self, size: int, /) -> bytes:
    """Returns at most `size` bytes; none when enough were read."""
    block = self._stream.read(min(size, self._left))
    self._left -= len(block)
    return block


def _ended(piece: Piece) -> Piece:
  if piece.data.endswith(b"\n"):
    return piece
  return piece._replace(data=piece.data + b"\n")


def _boundary(buffer: bytes) -> int:
  """Returns where to cut, after a line if possible, or 0 to read on."""
  if end := buffer.rfind(b"\n") + 1:
    return end
  if len(buffer) < _LONGEST:
    return 0
  if end := max(buffer.rfind(b" "), buffer.rfind(b"\t")) + 1:
    return end
  end = len(buffer)
  while buffer[end - 1] & 0xC0 == 0x80 and end > len(buffer) - 3:
    end -= 1  # Back over the continuation bytes of a UTF-8 character.
  return end - 1
