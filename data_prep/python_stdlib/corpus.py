"""The sources of the running Python's standard library, found everywhere.

Real text with long-range structure that takes no download. Which file is in
which split depends on its name alone, so it does not change with the version
of Python; the text of course does.
"""

import functools
import hashlib
import pathlib
import platform
import sysconfig
from collections.abc import Iterator

from data_prep import corpus
from data_prep import piece
from data_prep import source as source_lib
from data_prep import tokenizer
from transformer_xl import errors

# Tests, tables and generated text, other people's packages, and what differs
# from one build of the same Python to the next.
_LEFT_OUT = (
  "__phello__",
  "__pycache__",
  "dist-packages",
  "encodings",
  "ensurepip",
  "idle_test",
  "lib-dynload",
  "lib2to3",
  "pydoc_data",
  "site-packages",
  "test",
  "tests",
)
_MACHINE_FILES = ("config-", "_sysconfigdata", "sitecustomize")
# Of a hundred files, about so many in each of these splits.
_SHARES = {"valid": 3, "test": 3}


def open_corpus(*, path: str | None) -> corpus.Corpus:
  """Returns the corpus; `path` is another library to take it from."""
  place = pathlib.Path(path or sysconfig.get_path("stdlib"))
  source = source_lib.Folder(place, skip=_LEFT_OUT)
  names = [name for name in source.names() if _is_library(name)]
  if not names:
    raise errors.UserError(
      f"{place} has no Python sources; give a folder with them, or prepare"
      " your own text with --dataset=text."
    )
  return corpus.Corpus(
    name="python_stdlib",
    splits={
      split: functools.partial(
        read, source, [name for name in names if split_of(name) == split]
      )
      for split in ("train", "valid", "test")
    },
    tokenizer=tokenizer.Tokenizer(kind="byte"),
    vocabulary_splits=("train",),
    source={"path": str(place), "python": platform.python_version()},
    fingerprint=source.fingerprint(),
  )


def split_of(name: str) -> str:
  """Returns the split that a file is in, by a hash of its name."""
  place = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100
  for split, share in _SHARES.items():
    if place < share:
      return split
    place -= share
  return "train"


def read(source: source_lib.Source, names: list[str]) -> Iterator[piece.Piece]:
  """Yields the text of some files, each a document."""
  for name in names:
    with source.open(name) as stream:
      yield from piece.cut(stream, origin=f"{source.path}/{name}")


def _is_library(name: str) -> bool:
  return name.endswith(".py") and not name.startswith(_MACHINE_FILES)
