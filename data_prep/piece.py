"""Pieces: a text as a stream of byte strings of about a megabyte.

A piece fits in memory where a corpus may not. Pieces end where no word is cut
in two, so they can be encoded one by one.
"""

import io
import itertools
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

import tqdm

from transformer_xl import errors

_BLOCK = 1 << 20
# Only beyond this length is a line cut at white space, and a word anywhere.
_LONGEST = 4 << 20
# More than one byte in so many is NUL: no text in UTF-8.
_MOST_NULS = 10
# Progress is shown only for passes that take longer than this.
_SECONDS_BEFORE_PROGRESS = 1.0

Readable = IO[bytes] | io.BufferedIOBase


class Piece(NamedTuple):
  """Some consecutive bytes of one file."""

  data: bytes
  starts_document: bool
  origin: str  # The file, for messages.
  offset: int  # Where in the file `data` starts.

  def part(self, start: int, stop: int | None, is_first: bool) -> "Piece":
    """Returns the bytes from start to stop, which may start a document."""
    data = self.data[start:stop]
    offset = self.offset + start
    return Piece(data, is_first, self.origin, offset)

  def text(self) -> str:
    """Returns the data as text.

    Raises:
      UserError: it is not UTF-8; the first wrong byte is named. Or it has NULs
        as UTF-16 has, of which a few may be in any text.
    """
    if self.data.count(b"\0") * _MOST_NULS > len(self.data):
      place = self.offset + self.data.index(b"\0")
      # The first character is most likely ASCII: its other byte is NUL.
      encoding = "UTF-16LE" if place % 2 else "UTF-16BE"
      raise errors.UserError(
        f"{self.origin} is not text in UTF-8: it has many NULs, the first at"
        f" offset {place}, as UTF-16 has; convert it, for example with iconv -f"
        f" {encoding} -t UTF-8, or use --tokenizer=byte."
      )
    try:
      return self.data.decode("utf-8")
    except UnicodeDecodeError as error:
      raise errors.UserError(
        f"{self.origin} is not UTF-8: byte 0x{self.data[error.start]:02x} at"
        f" offset {self.offset + error.start}; convert it, for example with"
        " iconv -t UTF-8, or use --tokenizer=byte."
      ) from None

  def refuse_cut_word(self) -> None:
    """Raises UserError if the data ends within a word too long to be one."""
    if len(self.data) > _LONGEST - 4 and not self.data[-1:].isspace():
      raise errors.UserError(
        f"{self.origin} has no white space in the {len(self.data)} bytes from"
        f" offset {self.offset}; use --tokenizer=byte or --tokenizer=character."
      )


Pieces = Iterator[Piece]


def cut(stream: Readable, *, origin: str) -> Pieces:
  """Yields a stream as a document, cut at ends of lines where there are any."""
  buffer = b""
  offset = 0
  while block := stream.read(_BLOCK):
    buffer += block
    if end := _boundary(buffer):
      yield Piece(buffer[:end], offset == 0, origin, offset)
      offset += end
      buffer = buffer[end:]
  if buffer:
    yield Piece(buffer, offset == 0, origin, offset)


def record(data: bytes, *, origin: str) -> Pieces:
  """Yields a record as a document, also an empty one: a blank line of text."""
  if not data:
    yield Piece(data, True, origin, 0)
  yield from cut(io.BytesIO(data), origin=origin)


def stretch(text: Pieces, start: int, stop: int) -> Pieces:
  """Yields the bytes of a text from start to stop, as a document or more.

  Empty documents come with the bytes behind them.
  """
  position = 0
  first = True
  for piece in text:
    if position >= stop:
      return
    first = first or piece.starts_document
    part = piece.part(max(start - position, 0), stop - position, first)
    is_inside = position >= start
    position += len(piece.data)
    if part.data or (is_inside and not piece.data):
      yield part
      first = False


def separated(pieces: Pieces, *, final_newline: bool) -> Pieces:
  """Yields the pieces with a newline after every document, or but the last."""
  ahead: Iterator[Piece | None] = itertools.chain(pieces, [None])
  for piece, after in itertools.pairwise(ahead):
    assert piece is not None  # Only the last `after` is.
    ends = after.starts_document if after else final_newline
    if ends and not piece.data.endswith(b"\n"):
      piece = piece._replace(data=piece.data + b"\n")
    yield piece


def documents(pieces: Pieces) -> Iterator[bytes]:
  """Yields whole documents."""
  parts: list[bytes] = []
  for piece in pieces:
    if piece.starts_document and parts:
      yield b"".join(parts)
      parts = []
    parts.append(piece.data)
  if parts:
    yield b"".join(parts)


def with_progress(pieces: Pieces, label: str) -> Pieces:
  """Yields the pieces and shows on standard error how much has been read."""
  with progress_bar(label) as bar:
    for piece in pieces:
      yield piece
      bar.update(len(piece.data))


def progress_bar(
  label: str, *, initial: int = 0, total: int | None = None
) -> tqdm.tqdm:
  """Returns a bar that counts bytes; a log file gets a line now and then."""
  return tqdm.tqdm(
    desc=label,
    unit="B",
    unit_scale=True,
    delay=_SECONDS_BEFORE_PROGRESS,
    mininterval=0.5 if sys.stderr.isatty() else 10,
    initial=initial,
    total=total,
  )


def clock(label: str) -> tqdm.tqdm:
  """Returns a line with the time since now, for work of unknown length."""
  return tqdm.tqdm(
    desc=label,
    bar_format="{desc}: {elapsed}",
    delay=_SECONDS_BEFORE_PROGRESS,
    mininterval=0.5 if sys.stderr.isatty() else 10,
  )


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
