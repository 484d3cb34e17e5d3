"""enwik8: the first 10^8 bytes of a dump of Wikipedia, cut 90/5/5.

In the mode `bytes` nothing is changed: 205 different bytes. The published
results (1.06, 0.99 and so on bits per character) are of another stream, the
mode `newline_free`: a script between the corpus and the models lost all
newlines, which leaves 204. The two do not compare: newlines are easy to
predict.
"""

from collections.abc import Mapping
from typing import ClassVar

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import download
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

# Where each split starts and stops, in bytes.
SPLITS = {
  "train": (0, 90_000_000),
  "valid": (90_000_000, 95_000_000),
  "test": (95_000_000, 100_000_000),
}
PUBLISHED: builder.Published = {
  "bytes": {"num_bytes": (90_000_000, 5_000_000, 5_000_000), "symbols": (205,)},
  "newline_free": {
    "num_bytes": (88_982_818, 4_945_742, 4_943_417),
    "symbols": (204,),
  },
}


@registry.datasets.register("enwik8")
class Builder(builder.BenchmarkBuilder):
  """Builds enwik8, one record per megabyte."""

  MODES: ClassVar[Mapping[str, str]] = {
    "bytes": "the original text",
    "newline_free": "the stream of the published results",
  }
  HOMEPAGE = "https://mattmahoney.net/dc/textdata.html"
  ARCHIVES = download.published("enwik8")
  FILES = ("enwik8",)
  NEEDED = "enwik8.zip or the file in it"
  TOKENIZER = tokenizer.Tokenizer(kind="byte", all_bytes=False)
  PUBLISHED = PUBLISHED
  records = staticmethod(builder.by_piece)

  @staticmethod
  def read(
    source: source_lib.Source, file: str, split: str, mode: str | None
  ) -> piece_lib.Pieces:
    """Yields the bytes of a split, all or those that are no newlines."""
    removed = b"\n" if mode == "newline_free" else b""
    for piece in piece_lib.stretch(source.read(file), *SPLITS[split]):
      yield piece._replace(data=piece.data.translate(None, removed))
