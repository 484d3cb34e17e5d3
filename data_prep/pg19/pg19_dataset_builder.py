"""PG-19: whole books of Project Gutenberg, one document each.

It is published as a bucket, gs://deepmind-gutenberg, with a text file for each
book in the folders train, validation and test, and a table of titles and dates,
which is not needed here. The vocabulary is open, so perplexity is per word,
whatever the tokens are: the loss of a split in nats is divided by the number of
words that the authors state (Rae et al. 2019, section 4.2).
"""

import functools
import os
import pathlib
import re

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

ADDRESS = "gs://deepmind-gutenberg"
# Rae et al. 2019, table 2: of train, valid and test.
NUM_BOOKS = (28_602, 50, 100)
NUM_WORDS = (1_973_136_207, 3_007_061, 6_966_499)
_FOLDERS = {"train": "train", "valid": "validation", "test": "test"}
# As many subwords as in the paper.
_TOKENIZER = tokenizer.Tokenizer(kind="subword", max_size=32_000)


@registry.datasets.register("pg19")
class Builder(builder.CorpusBuilder):
  """Builds PG-19, one record per book."""

  HOMEPAGE = "https://github.com/google-deepmind/pg19"
  MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
  Copy the folders train, validation and test of {ADDRESS} into the folder.
  """

  @staticmethod
  def open_corpus(
    *, path: str | None, cache: pathlib.Path
  ) -> corpus_lib.Corpus:
    """Returns the corpus from a copy of the bucket.

    Raises:
      UserError: there is no copy, or a split has another number of books.
    """
    del cache
    if path is None or not os.path.isdir(storage.expanded(path)):
      raise errors.UserError(
        f"--dataset=pg19 needs a copy of {ADDRESS} (11 GB), and --source is"
        f" {path}: run `gcloud storage cp -r {ADDRESS} .` and give"
        " --source=deepmind-gutenberg."
      )
    source = source_lib.locate(path)
    splits: dict[str, corpus_lib.Split] = {}
    for split, num_books in zip(corpus_lib.SPLITS, NUM_BOOKS, strict=True):
      folder = _FOLDERS[split]
      pattern = re.compile(rf"(?:.*/)?{folder}/[^/]+\.txt")
      names = [name for name in source.names if pattern.fullmatch(name)]
      if len(names) != num_books:
        raise errors.UserError(
          f"{path} is not the published PG-19: its folder {folder} has"
          f" {len(names)} books, not {num_books}; copy {ADDRESS} again."
        )
      splits[split] = functools.partial(source.read, *names)
    return corpus_lib.Corpus(
      name="pg19",
      splits=splits,
      tokenizer=_TOKENIZER,
      vocabulary_splits=("train",),
      stated_words=NUM_WORDS,
      source={"path": str(source.path)},
      fingerprint=source.fingerprint,
    )
