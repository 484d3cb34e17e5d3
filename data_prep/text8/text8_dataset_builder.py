"""text8: 10^8 letters and spaces of Wikipedia, cut 90/5/5; 27 symbols."""

from collections.abc import Mapping
from typing import ClassVar

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import download
from transformer_xl.data_prep import tokenizer
from transformer_xl.data_prep.enwik8 import enwik8_dataset_builder

# The size is the published one; the hash is not known.
ARCHIVE = download.Archive(
  filename="text8.zip",
  urls=(
    "https://mattmahoney.net/dc/text8.zip",
    "https://data.deepai.org/text8.zip",
  ),
  size=31_344_016,
)
PUBLISHED: builder.Published = {
  None: {"num_characters": (90_000_000, 5_000_000, 5_000_000), "symbols": (27,)}
}


@registry.datasets.register("text8")
class Builder(enwik8_dataset_builder.Builder):
  """Builds text8, one record per megabyte."""

  MODES: ClassVar[Mapping[str, str]] = {}
  ARCHIVES = (ARCHIVE,)
  FILES = ("text8",)
  NEEDED = "text8.zip or the file in it"
  TOKENIZER = tokenizer.Tokenizer(kind="character")
  PUBLISHED = PUBLISHED
