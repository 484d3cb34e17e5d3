"""WikiText-2 and WikiText-103: tokenised articles with an end per line.

A heading of the first level, ` = Title = ` between blank lines, starts an
article; the blank line before it belongs to the article before.
"""

import functools
import itertools
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Mapping

from data_prep import corpus
from data_prep import download
from data_prep import piece as piece_lib
from data_prep import source as source_lib
from data_prep import tokenizer

ARCHIVES = {
  name: download.published(name)[0] for name in ("wikitext2", "wikitext103")
}
PUBLISHED: Mapping[str, Mapping[str, Mapping[str, int]]] = {
  "wikitext2": {
    "train": {"num_words": 2_088_628, "num_lines": 36_718},
    "valid": {"num_words": 217_646, "num_lines": 3_760},
    "test": {"num_words": 245_569, "num_lines": 4_358},
  },
  "wikitext103": {
    "train": {"num_words": 103_227_021, "num_lines": 1_801_350},
    "valid": {"num_words": 217_646, "num_lines": 3_760},
    "test": {"num_words": 245_569, "num_lines": 4_358},
  },
}
VOCABULARY_SIZES = {"wikitext2": 33_278, "wikitext103": 267_735}
# As published: WikiText-103 counts the words of its training text only.
_COUNTED = {"wikitext2": ("train", "valid", "test"), "wikitext103": ("train",)}
_HEADING = re.compile(
  rb"(?:(?<=\n\n)|(?<=\n \n)) ?= [^=\n][^\n]* = ?\n(?= ?\n)"
)


def open_corpus(
  name: str, *, path: str | None, cache: pathlib.Path
) -> corpus.Corpus:
  """Returns `wikitext2` or `wikitext103`, from its archive or a folder."""
  source = download.locate([ARCHIVES[name]], path=path, cache=cache)
  return corpus.Corpus(
    name=name,
    splits={
      split: functools.partial(
        read,
        source,
        source.member(
          f"wiki.{split}.tokens",
          f"{split}.txt",
          needed=f"{ARCHIVES[name].filename} or the three files",
        ),
      )
      for split in PUBLISHED[name]
    },
    tokenizer=tokenizer.Tokenizer(kind="word"),
    vocabulary_splits=_COUNTED[name],
    source={"path": str(source.path)},
    fingerprint=source.fingerprint(),
    published=PUBLISHED[name],
    published_size=VOCABULARY_SIZES[name],
  )


def read(source: source_lib.Source, name: str) -> Iterator[piece_lib.Piece]:
  """Yields a split, one piece per article, with the blank lines around it."""
  with source.open(name) as stream:
    yield from _articles(piece_lib.cut(stream, origin=f"{source.path}:{name}"))


def _articles(text: Iterator[piece_lib.Piece]) -> Iterator[piece_lib.Piece]:
  """Joins and cuts pieces so that each is one whole article."""
  rest = None
  for piece in text:
    if rest is not None:
      piece = rest._replace(data=rest.data + piece.data)
    # A heading at the very end is only recognised with the next piece.
    starts = [match.start() for match in _HEADING.finditer(piece.data)]
    for start, stop in itertools.pairwise([0, *starts]):
      yield _part(piece, start, stop)
    rest = _part(piece, starts[-1] if starts else 0, len(piece.data))
  if rest is not None:
    yield rest


def _part(piece: piece_lib.Piece, start: int, stop: int) -> piece_lib.Piece:
  return piece_lib.Piece(
    data=piece.data[start:stop],
    starts_document=True,
    origin=piece.origin,
    offset=piece.offset + start,
  )
