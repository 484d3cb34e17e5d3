"""Penn Treebank as Mikolov prepared it: 10,000 words, one sentence per line.

Two more modes make small texts of the kinds that larger benchmarks are of:
`shuffled` has the sentences of each split in random order, as One Billion Word
has, and `letters` has the text as letters and spaces, as text8 has.
"""

import dataclasses
import pathlib
import random
import re
from collections.abc import Mapping
from typing import ClassVar

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import download
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

_WORDS: corpus_lib.Published = {
  "num_words": (929_589, 73_760, 82_430),
  "symbols": (10_000,),
}
PUBLISHED: builder.Published = {
  "ordered": _WORDS,
  "shuffled": _WORDS,
  "letters": {"symbols": (27,)},
}
_LETTERS = tokenizer.Tokenizer(kind="character")
_NO_LETTERS = re.compile(rb"[^a-z]+")


@registry.datasets.register("ptb")
class Builder(builder.BenchmarkBuilder):
  """Builds the Penn Treebank, one record per megabyte."""

  MODES: ClassVar[Mapping[str, str]] = {
    "ordered": "the text as it is",
    "shuffled": "its sentences in random order",
    "letters": "its letters and spaces, 27 symbols",
  }
  HOMEPAGE = "https://catalog.ldc.upenn.edu/LDC99T42"
  # The files in simple-examples.tgz, the archive as published; its own hash is
  # not known, theirs are.
  ARCHIVES = download.published("ptb")
  FILES = ("ptb.{}.txt",)
  NEEDED = "simple-examples.tgz or the three files"
  TOKENIZER = tokenizer.Tokenizer(kind="word", lower_case=True)
  PUBLISHED = PUBLISHED
  records = staticmethod(builder.by_piece)

  @classmethod
  def open_corpus(
    cls, *, path: str | None, cache: pathlib.Path, mode: str | None = None
  ) -> corpus_lib.Corpus:
    """Returns the corpus, of characters in the mode `letters`."""
    found = super().open_corpus(path=path, cache=cache, mode=mode)
    if mode == "letters":
      return dataclasses.replace(found, tokenizer=_LETTERS)
    return found

  @staticmethod
  def read(
    source: source_lib.Source, file: str, split: str, mode: str | None
  ) -> piece_lib.Pieces:
    """Yields the text of a split, as the mode has it."""
    for piece in source.read(file):
      data = piece.data
      if mode == "letters":
        data = _NO_LETTERS.sub(b" ", data.lower())
      if mode == "shuffled":
        # A split is a few megabytes; of two pieces each is shuffled by itself.
        lines = data.splitlines(keepends=True)
        random.Random(split).shuffle(lines)
        data = b"".join(lines)
      yield piece._replace(data=data)
