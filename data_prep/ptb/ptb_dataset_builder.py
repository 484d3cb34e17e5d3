"""Penn Treebank as Mikolov prepared it: 10,000 words, one sentence per line."""

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import download
from transformer_xl.data_prep import tokenizer

PUBLISHED: builder.Published = {
  None: {"num_words": (929_589, 73_760, 82_430), "symbols": (10_000,)}
}


@registry.datasets.register("ptb")
class Builder(builder.BenchmarkBuilder):
  """Builds the Penn Treebank, one record per megabyte."""

  HOMEPAGE = "https://catalog.ldc.upenn.edu/LDC99T42"
  # The files in simple-examples.tgz, the archive as published; its own hash is
  # not known, theirs are.
  ARCHIVES = download.published("ptb")
  FILES = ("ptb.{}.txt",)
  NEEDED = "simple-examples.tgz or the three files"
  TOKENIZER = tokenizer.Tokenizer(kind="word", lower_case=True)
  PUBLISHED = PUBLISHED
  records = staticmethod(builder.by_piece)
