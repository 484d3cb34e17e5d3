"""Penn Treebank as Mikolov prepared it: 10,000 words, one sentence a line."""

import functools
import pathlib
from collections.abc import Iterator

from data_prep import corpus
from data_prep import download
from data_prep import piece
from data_prep import source as sources
from data_prep import tokenizer
from transformer_xl import errors

ARCHIVE = download.Archive(
  filename="simple-examples.tgz",
  urls=("https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",),
)
PUBLISHED = {
  "train": {"num_words": 929_589},
  "valid": {"num_words": 73_760},
  "test": {"num_words": 82_430},
}
VOCABULARY_SIZE = 10_000


def open_corpus(*, path: str | None, cache: pathlib.Path) -> corpus.Corpus:
  """Returns the corpus; its splits are read from a folder or the archive."""
  source = download.locate(ARCHIVE, path=path, cache=cache)
  return corpus.Corpus(
    name="ptb",
    splits={
      split: functools.partial(read, source, member(source, split))
      for split in PUBLISHED
    },
    tokenizer=tokenizer.Tokenizer(kind="word", lower_case=True),
    # As published: the words of all splits count.
    vocabulary_splits=("train", "valid", "test"),
    source={"path": str(source.path)},
    fingerprint=source.fingerprint(),
    published=PUBLISHED,
    published_size=VOCABULARY_SIZE,
  )


def member(source: sources.Source, split: str) -> str:
  """Returns the name of a split's file; UserError if there is none."""
  name = source.find(f"ptb.{split}.txt")
  if name is None:
    raise errors.UserError(
      f"{source.path} has no ptb.{split}.txt; give {ARCHIVE.filename} or the"
      " folder data in it."
    )
  return name


def read(source: sources.Source, name: str) -> Iterator[piece.Piece]:
  """Yields the text of a split, as one document."""
  with source.open(name) as stream:
    yield from piece.cut(stream, origin=f"{source.path}:{name}")
