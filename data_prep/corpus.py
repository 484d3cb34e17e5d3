"""Corpora: texts in splits, read in pieces, with their published counts."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from transformer_xl.data import token_file
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib

SPLITS = ("train", "valid", "test")
# A split can be read any number of times, always with the same result.
Split = Callable[[], piece_lib.Pieces]
# Counts of each of SPLITS by field of meta.json, None where not known, and as
# "symbols" the size of the usual vocabulary.
Published = dict[str, tuple[int | None, ...]]


class Part(NamedTuple):
  """One of several texts that are mixed to a training text."""

  source: str  # As the user names it.
  weight: float  # Its share of the training tokens; all add up to 1.
  text: Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """A text to prepare, and how it is cut into tokens."""

  name: str
  splits: dict[str, Split]  # In the order of SPLITS.
  tokenizer: tokenizer_lib.Tokenizer  # At first the usual one.
  source: Mapping[str, object]  # Where the text is from, for people.
  # Returns a string that changes when the source changes.
  fingerprint: Callable[[], str]
  # What else the text depends on, apart from the mode.
  options: Mapping[str, object] = dataclasses.field(default_factory=dict)
  # Splits whose symbols are counted for the vocabulary, in this order.
  vocabulary_splits: tuple[str, ...] = SPLITS
  published: Published = dataclasses.field(default_factory=dict)
  # Numbers of words of each of SPLITS by which perplexity per word is defined,
  # where the publisher states them and not how they were counted.
  stated_words: tuple[int, ...] | None = None
  # Returns the path of the published list of words, if there is one.
  published_words: Callable[[], str] | None = None
  mode: str | None = None
  # 0: lines do not matter. 1: every line is a document, and one end marker
  # stands between two. 2: the same, with an end and a start marker.
  sentence_markers: int = 0
  # Returns the answers of each split, if the text is words with known answers.
  answers: Mapping[str, Callable[[], token_file.Answers]] | None = None
  # What the training text is mixed of, once its tokens can be counted; `train`
  # above then has each text once. Empty if it is one text.
  mixture: tuple[Part, ...] = ()
  report: str | None = None  # Shown when the dataset is complete.
  # Unpacks an archive to a folder and returns the splits, which are missing
  # above; None if the text is read in place.
  unpack: Callable[[pathlib.Path], dict[str, Split]] | None = None

  def unpacked(self, folder: pathlib.Path) -> "Corpus":
    """Returns the corpus with its splits, unpacked to a folder if need be."""
    if self.unpack is None:
      return self
    return dataclasses.replace(self, splits=self.unpack(folder), unpack=None)

  def cut_by(self, tokenizer: tokenizer_lib.Tokenizer) -> "Corpus":
    """Returns the corpus with a tokenizer, which may be the usual one."""
    if tokenizer == self.tokenizer:
      return self
    published = {k: n for k, n in self.published.items() if k != "symbols"}
    return dataclasses.replace(
      self, tokenizer=tokenizer, published=published, published_words=None
    )

  def pieces(self, split: str, activity: str) -> piece_lib.Pieces:
    """Yields a split's text as it is encoded, and shows its progress.

    A newline is added between documents where it is missing. Text of words also
    ends in one, so that its last line has an end marker like the others.
    """
    is_words = self.tokenizer.kind == "word"
    text = piece_lib.separated(self.splits[split](), final_newline=is_words)
    return piece_lib.with_progress(text, f"{self.name}: {activity} {split}")
