"""text8: 10^8 letters and spaces of Wikipedia, cut 90/5/5; 27 symbols."""

import functools
import pathlib

from data_prep import builder
from data_prep import corpus
from data_prep import download
from data_prep import tokenizer
from data_prep.enwik8 import enwik8_dataset_builder

# The size is the published one; the hash is not known.
ARCHIVE = download.Archive(
  filename="text8.zip",
  urls=(
    "https://mattmahoney.net/dc/text8.zip",
    "https://data.deepai.org/text8.zip",
  ),
  size=31_344_016,
)
SPLITS = enwik8_dataset_builder.SPLITS
PUBLISHED = {
  "train": {"num_characters": 90_000_000},
  "valid": {"num_characters": 5_000_000},
  "test": {"num_characters": 5_000_000},
}
VOCABULARY_SIZE = 27


class Builder(builder.CorpusBuilder):
  """Builds text8, one record per megabyte."""

  HOMEPAGE = "https://mattmahoney.net/dc/textdata.html"
  records = staticmethod(builder.by_piece)

  @staticmethod
  def open_corpus(*, path: str | None, cache: pathlib.Path) -> corpus.Corpus:
    """Returns the corpus, from the archive or the file in it."""
    source = download.locate([ARCHIVE], path=path, cache=cache)
    name = source.member("text8", needed="text8.zip or the file in it")
    return corpus.Corpus(
      name="text8",
      splits={
        split: functools.partial(
          enwik8_dataset_builder.read, source, name, *where
        )
        for split, where in SPLITS.items()
      },
      tokenizer=tokenizer.Tokenizer(kind="character"),
      vocabulary_splits=("train", "valid", "test"),
      source={"path": str(source.path)},
      fingerprint=source.fingerprint(),
      published=PUBLISHED,
      published_size=VOCABULARY_SIZE,
    )
