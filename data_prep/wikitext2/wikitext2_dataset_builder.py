"""WikiText-2 and WikiText-103: tokenised articles with an end per line.

A heading of the first level, ` = Title = ` between blank lines, starts an
article; the blank line before it belongs to the article before.
"""

import re
from typing import Any

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import download
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

PUBLISHED: builder.Published = {
  None: {
    "num_words": (2_088_628, 217_646, 245_569),
    "num_lines": (36_718, 3_760, 4_358),
    "symbols": (33_278,),
  }
}
_HEADING = re.compile(
  rb"(?:(?<=\n\n)|(?<=\n \n)) ?= [^=\n][^\n]* = ?\n(?= ?\n)"
)


@registry.datasets.register("wikitext2")
class Builder(builder.BenchmarkBuilder):
  """Builds WikiText-2, one record per article."""

  HOMEPAGE = "https://wikitext.smerity.com"
  ARCHIVES = download.published("wikitext2")
  FILES = ("wiki.{}.tokens", "{}.txt")
  NEEDED = "wikitext-2-v1.zip, wikitext-103-v1.zip or the three files"
  TOKENIZER = tokenizer.Tokenizer(kind="word")
  PUBLISHED = PUBLISHED

  @staticmethod
  def read(
    source: source_lib.Source, file: str, *unused: Any
  ) -> piece_lib.Pieces:
    """Yields one piece per article, with the blank lines around it."""
    rest = None
    for piece in source.read(file):
      if rest is not None:
        piece = rest._replace(data=rest.data + piece.data)
      # A heading at the very end is only recognised with the next piece.
      cuts = [match.start() for match in _HEADING.finditer(piece.data)]
      *articles, rest = (
        piece.part(start, stop, True)
        for start, stop in zip([0, *cuts], [*cuts, None], strict=True)
      )
      yield from articles
    if rest is not None:
      yield rest
