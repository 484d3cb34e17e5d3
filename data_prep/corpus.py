"""Corpora: texts in splits, read piece by piece, with what is known of them."""

import dataclasses
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from data_prep import piece
from data_prep import tokenizer
from transformer_xl import errors

# A split can be read any number of times, always with the same outcome.
Split = Callable[[], Iterator[piece.Piece]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
  """The size of a text before it is cut into tokens."""

  num_bytes: int = 0  # Of the text in UTF-8.
  num_characters: int = 0
  num_words: int = 0  # Between white space, and one end marker a line.
  num_lines: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """A text to prepare."""

  name: str
  splits: Mapping[str, Split]  # In the order train, valid, test.
  tokenizer: tokenizer.Tokenizer  # The field's usual one for this text.
  # The splits whose symbols are counted for the vocabulary, in this order.
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
  # What reading the corpus took, to be deleted when the dataset is whole.
  scratch: pathlib.Path | None = None


def check(corpus: Corpus, *, split: str, counts: Counts) -> None:
  """Raises UserError unless the split has its published counts."""
  for field, expected in corpus.published.get(split, {}).items():
    if (found := getattr(counts, field)) != expected:
      raise errors.UserError(
        f"{corpus.source['path']} is not the published {corpus.name}: its"
        f" {split} split has {found} {field.removeprefix('num_')}, not"
        f" {expected}; give the original files, or prepare other text with"
        " --dataset=text."
      )
