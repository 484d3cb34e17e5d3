"""Pieces: a text as a stream of byte strings of about a megabyte.

A piece fits in memory where a corpus may not. Pieces end where no word is cut
in two, so they can be encoded one by one.
"""

import sys
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import Protocol

import tqdm

from transformer_xl import errors

_BLOCK = 1 << 20
# Only beyond this length is a line cut at white space, and a word anywhere.
_LONGEST = 4 << 20
# Progress is shown only for passes that take longer than this.
_SECONDS_BEFORE_PROGRESS = 1.0


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


def cut(stream: Readable, *, origin: str) -> Iterator[Piece]:
  """Yields a stream as a document, cut at ends of lines where there are any.

  Args:
    stream: The text.
    origin: The file's name, for messages.
  """
  buffer, starts_document, offset = b"", True, 0
  while block := stream.read(_BLOCK):
    buffer += block
    if end := _boundary(buffer):
      yield Piece(buffer[:end], starts_document, origin, offset)
      starts_document = False
      offset += end
      buffer = buffer[end:]
  if buffer:
    yield Piece(buffer, starts_document, origin, offset)


def stretch(text: Iterable[Piece], start: int, stop: int) -> Iterator[Piece]:
  """Yields the bytes of a text from start to stop, as a document or more."""
  position, first = 0, True
  for piece in text:
    if position >= stop:
      return
    begin = max(start - position, 0)
    data = piece.data[begin : stop - position]
    position += len(piece.data)
    if data:
      yield piece._replace(
        data=data,
        offset=piece.offset + begin,
        starts_document=piece.starts_document or first,
      )
      first = False


def separated(
  pieces: Iterator[Piece], *, final_newline: bool
) -> Iterator[Piece]:
  """Yields the pieces with a newline after every document without one.

  Args:
    pieces: The text; a document may be several pieces.
    final_newline: Whether the last document gets a newline, too.
  """
  last = None
  for piece in pieces:
    if last is not None:
      yield _ended(last) if piece.starts_document else last
    last = piece
  if last is not None:
    yield _ended(last) if final_newline else last


def with_progress(pieces: Iterable[Piece], label: str) -> Iterator[Piece]:
  """Yields the pieces and shows on standard error how much has been read."""
  with progress_bar(label) as bar:
    for piece in pieces:
      yield piece
      bar.update(len(piece.data))


def progress_bar(label: str, **options: Any) -> tqdm.tqdm:
  """Returns a bar that counts bytes; a log file gets a line now and then."""
  return tqdm.tqdm(
    desc=label,
    unit="B",
    unit_scale=True,
    delay=_SECONDS_BEFORE_PROGRESS,
    mininterval=0.5 if sys.stderr.isatty() else 10,
    **options,
  )


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
  """Returns a piece as text; UserError names the first byte not in UTF-8."""
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
      f" offset {piece.offset}, so it has no words; use"
      " --tokenizer=byte or --tokenizer=character."
    )


def _ended(piece: Piece) -> Piece:
  end = b"" if piece.data.endswith(b"\n") else b"\n"
  return piece._replace(data=piece.data + end)


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
