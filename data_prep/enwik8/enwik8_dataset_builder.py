"""enwik8: the first 10^8 bytes of a dump of Wikipedia, cut 90/5/5.

In the mode `bytes` nothing is changed: 205 different bytes. The published
results (1.06, 0.99 and so on bits per character) are of another stream, the
mode `newline_free`: a script between the corpus and the models lost all
newlines, which leaves 204. The two do not compare: newlines are easy to
predict.
"""

import functools
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping

from data_prep import builder
from data_prep import corpus
from data_prep import download
from data_prep import piece as piece_lib
from data_prep import source as source_lib
from data_prep import tokenizer
from transformer_xl import errors

(ARCHIVE,) = download.published("enwik8")
# Where each split starts and stops, in bytes.
SPLITS = {
  "train": (0, 90_000_000),
  "valid": (90_000_000, 95_000_000),
  "test": (95_000_000, 100_000_000),
}
PUBLISHED: Mapping[str, Mapping[str, Mapping[str, int]]] = {
  "bytes": {
    "train": {"num_bytes": 90_000_000},
    "valid": {"num_bytes": 5_000_000},
    "test": {"num_bytes": 5_000_000},
  },
  "newline_free": {
    "train": {"num_bytes": 88_982_818},
    "valid": {"num_bytes": 4_945_742},
    "test": {"num_bytes": 4_943_417},
  },
}
VOCABULARY_SIZES = {"bytes": 205, "newline_free": 204}


class Builder(builder.CorpusBuilder):
  """Builds enwik8, one record per megabyte."""

  HOMEPAGE = "https://mattmahoney.net/dc/textdata.html"
  records = staticmethod(builder.by_piece)

  @staticmethod
  def open_corpus(
    *, path: str | None, cache: pathlib.Path, mode: str = "bytes"
  ) -> corpus.Corpus:
    """Returns the corpus in the mode `bytes` or `newline_free`."""
    if mode not in VOCABULARY_SIZES:
      raise errors.UserError(
        f"--mode={mode} is none of enwik8's modes; use bytes for the original"
        " text, or newline_free for the stream of the published results."
      )
    source = download.locate([ARCHIVE], path=path, cache=cache)
    name = source.member("enwik8", needed="enwik8.zip or the file in it")
    return corpus.Corpus(
      name="enwik8",
      splits={
        split: functools.partial(
          read, source, name, *where, newlines=mode == "bytes"
        )
        for split, where in SPLITS.items()
      },
      tokenizer=tokenizer.Tokenizer(kind="byte", all_bytes=False),
      vocabulary_splits=("train", "valid", "test"),
      source={"path": str(source.path)},
      fingerprint=source.fingerprint(),
      published=PUBLISHED[mode],
      published_size=VOCABULARY_SIZES[mode],
      mode=mode,
    )


def read(
  source: source_lib.Source,
  name: str,
  start: int,
  stop: int,
  *,
  newlines: bool = True,
) -> Iterator[piece_lib.Piece]:
  """Yields the bytes from start to stop, with or without the newlines."""
  with source.open(name) as stream:
    text = piece_lib.cut(stream, origin=f"{source.path}:{name}")
    for piece in piece_lib.stretch(text, start, stop):
      data = piece.data if newlines else piece.data.replace(b"\n", b"")
      yield piece._replace(data=data)
