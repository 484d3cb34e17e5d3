"""text8: 10^8 letters and spaces of Wikipedia, cut 90/5/5; 27 symbols."""

import functools
import pathlib
from collections.abc import Iterator

from data_prep import corpus
from data_prep import download
from data_prep import piece
from data_prep import source as source_lib
from data_prep import tokenizer
from transformer_xl import errors

# The size is the published one; the hash is not known.
ARCHIVE = download.Archive(
  filename="text8.zip",
  urls=(
    "https://mattmahoney.net/dc/text8.zip",
    "https://data.deepai.org/text8.zip",
  ),
  size=31_344_016,
)
# Where each split starts and stops.
SPLITS = {
  "train": (0, 90_000_000),
  "valid": (90_000_000, 95_000_000),
  "test": (95_000_000, 100_000_000),
}
PUBLISHED = {
  "train": {"num_characters": 90_000_000},
  "valid": {"num_characters": 5_000_000},
  "test": {"num_characters": 5_000_000},
}
VOCABULARY_SIZE = 27


def open_corpus(*, path: str | None, cache: pathlib.Path) -> corpus.Corpus:
  """Returns the corpus, from the archive or the file in it."""
  source = download.locate(ARCHIVE, path=path, cache=cache)
  if (name := source.find("text8")) is None:
    raise errors.UserError(
      f"{source.path} has no text8; give text8.zip or the file in it."
    )
  return corpus.Corpus(
    name="text8",
    splits={
      split: functools.partial(read, source, name, *where)
      for split, where in SPLITS.items()
    },
    tokenizer=tokenizer.Tokenizer(kind="character"),
    vocabulary_splits=("train", "valid", "test"),
    source={"path": str(source.path)},
    fingerprint=source.fingerprint(),
    published=PUBLISHED,
    published_size=VOCABULARY_SIZE,
  )


def read(
  source: source_lib.Source, name: str, start: int, stop: int
) -> Iterator[piece.Piece]:
  """Yields the characters from start to stop."""
  with source.open(name) as stream:
    yield from piece.stretch(
      stream, start, stop, origin=f"{source.path}:{name}"
    )
