"""Where documents start in a text: at lines that start or end one.

Without such lines a document is a file, a record or a row.
"""

import io
import itertools
import re
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.data_prep import piece as piece_lib


class Boundaries(NamedTuple):
  """Patterns of lines, at least one of which is given."""

  start: re.Pattern[str] | None  # The first line of a document matches it.
  end: re.Pattern[str] | None  # The last line of a document matches it.

  def options(self) -> dict[str, str]:
    """Returns the flags that were given, by name."""
    given = {"document_start": self.start, "document_end": self.end}
    return {flag: one.pattern for flag, one in given.items() if one}


def parse(start: str | None, end: str | None) -> Boundaries | None:
  """Returns the boundaries of --document_start and --document_end, if any.

  Raises:
    UserError: one of them is no regular expression.
  """
  patterns: dict[str, re.Pattern[str] | None] = {}
  for flag, text in (("document_start", start), ("document_end", end)):
    try:
      patterns[flag] = None if text is None else re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
      raise errors.UserError(
        f"--{flag}={text} is not a regular expression ({error}); give the"
        r" pattern of a line, such as '^Chapter \d+' or '^$' for an empty one."
      ) from None
  boundaries = Boundaries(patterns["document_start"], patterns["document_end"])
  return boundaries if any(boundaries) else None


def join(records: piece_lib.Pieces) -> piece_lib.Pieces:
  """Yields records as lines of one text, of which none starts a document."""
  for piece in piece_lib.separated(records, final_newline=True):
    yield piece._replace(starts_document=False)


def divide(text: piece_lib.Pieces, boundaries: Boundaries) -> piece_lib.Pieces:
  """Yields a text with documents where the lines say, and where it has them.

  The first line starts a document. Lines that end one and follow each other end
  it together.
  """
  start, end = boundaries
  is_first = True
  starts_line = True
  has_text = False  # The document has a line that does not end it.
  has_ended = False
  for piece in text:
    places = [0] if piece.starts_document or is_first else []
    if places:
      has_text = has_ended = False
      starts_line = True
    is_first = False
    place = 0
    for line in io.BytesIO(piece.data):
      if starts_line:
        content = line.decode("utf-8", "replace").rstrip("\r\n")
        ends = end is not None and end.search(content) is not None
        starts = start is not None and start.search(content) is not None
        if starts or (has_ended and not ends):
          places.append(place)
          has_text = has_ended = False
        has_text = has_text or not ends
        has_ended = has_text and ends
      starts_line = line.endswith(b"\n")
      place += len(line)
    stops = [*sorted({0, *places}), None]
    for first, stop in itertools.pairwise(stops):
      assert first is not None  # Only the last stop is.
      yield piece.part(first, stop, first in places)
