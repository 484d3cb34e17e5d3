"""Penn Treebank as Mikolov prepared it: 10,000 words, one sentence per line."""

import functools
import pathlib
from collections.abc import Iterator

from data_prep import builder
from data_prep import corpus
from data_prep import download
from data_prep import piece
from data_prep import source as source_lib
from data_prep import tokenizer

# The files in simple-examples.tgz, the archive as published; its own hash is
# not known, theirs are.
FILES = download.published("ptb")
PUBLISHED = {
  "train": {"num_words": 929_589},
  "valid": {"num_words": 73_760},
  "test": {"num_words": 82_430},
}
VOCABULARY_SIZE = 10_000


class Builder(builder.CorpusBuilder):
  """Builds the Penn Treebank, one record per megabyte."""

  HOMEPAGE = "https://catalog.ldc.upenn.edu/LDC99T42"
  records = staticmethod(builder.by_piece)

  @staticmethod
  def open_corpus(*, path: str | None, cache: pathlib.Path) -> corpus.Corpus:
    """Returns the corpus, from a folder or the archive."""
    source = download.locate(FILES, path=path, cache=cache)
    members = {
      split: source.member(
        f"ptb.{split}.txt", needed="simple-examples.tgz or the three files"
      )
      for split in PUBLISHED
    }
    return corpus.Corpus(
      name="ptb",
      splits={
        s: functools.partial(read, source, m) for s, m in members.items()
      },
      tokenizer=tokenizer.Tokenizer(kind="word", lower_case=True),
      # As published: the words of all splits count.
      vocabulary_splits=("train", "valid", "test"),
      source={"path": str(source.path)},
      fingerprint=source.fingerprint(),
      published=PUBLISHED,
      published_size=VOCABULARY_SIZE,
    )


def read(source: source_lib.Source, name: str) -> Iterator[piece.Piece]:
  """Yields the text of a split, as one document."""
  with source.open(name) as stream:
    yield from piece.cut(stream, origin=f"{source.path}:{name}")
