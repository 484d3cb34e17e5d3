"""Corpora: texts in splits, read in pieces, with their published counts."""

import dataclasses
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from data_prep import piece
from data_prep import tokenizer

# A split can be read any number of times, always with the same result.
Split = Callable[[], Iterator[piece.Piece]]


class Counts(NamedTuple):
  """The size of a text before it is cut into tokens."""

  num_bytes: int = 0  # Of the text in UTF-8.
  num_characters: int = 0
  num_words: int = 0  # Between white space, plus one end marker per line.
  num_lines: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """A text to prepare, and how it is usually cut into tokens."""

  name: str
  splits: Mapping[str, Split]  # In the order train, valid, test.
  tokenizer: tokenizer.Tokenizer  # The usual one in the literature.
  # Splits whose symbols are counted for the vocabulary, in this order.
  vocabulary_splits: tuple[str, ...]
  source: Mapping[str, Any]  # Where the text is from, for people.
  fingerprint: str  # Changes when the source changes.
  # Published counts of each split, and the size of the usual vocabulary.
  published: Mapping[str, Mapping[str, int]] = dataclasses.field(
    default_factory=dict
  )
  published_size: int | None = None
  mode: str | None = None
  # 0: lines do not matter. 1: every line is a document, and one end marker
  # stands between two. 2: the same, with an end and a start marker.
  sentence_markers: int = 0
  report: str | None = None  # Shown when the dataset is complete.
  # Unpacked files, deleted when the dataset is complete.
  scratch: pathlib.Path | None = None
