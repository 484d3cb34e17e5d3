"""TFDS builder of your own text; needs no TensorFlow."""

import functools
import pathlib
from typing import Any

from data_prep import builder
from data_prep import corpus
from data_prep import source as source_lib
from data_prep import tokenizer as tokenizer_lib
from data_prep.text import files
from data_prep.text import holdout
from data_prep.text import readers
from transformer_xl import errors

_BYTES = tokenizer_lib.of_text("byte")


class Builder(builder.CorpusBuilder):
  """Builds your own text, one record per document."""

  HOMEPAGE = "https://jsonlines.org"
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Put files of text into the folder; those named train, valid and test are
  splits.
  """

  @staticmethod
  def open_corpus(
    *,
    path: str | None,
    cache: pathlib.Path | None = None,
    field: str = "text",
    valid_source: str | None = None,
    test_source: str | None = None,
    tokenizer: tokenizer_lib.Tokenizer = _BYTES,
    **fractions: Any,
  ) -> corpus.Corpus:
    """Returns the corpus.

    A source is a file, a folder, or patterns separated by commas; the field is
    that of a record, or the column of a table, with the text. Fractions are
    held out as in `holdout.divide`. UserError if there is no text.
    """
    del cache
    if path is None:
      raise errors.UserError(
        "--dataset=text needs your text: --source=FILE, FOLDER or '*.txt'."
      )
    found, report = files.of_splits(
      source=path, valid_source=valid_source, test_source=test_source
    )
    every = [file for files in found.values() for file in files]
    read = functools.partial(readers.read, field=field)
    return holdout.of_splits(
      {split: functools.partial(read, paths) for split, paths in found.items()},
      fractions,
      name="text",
      tokenizer=tokenizer,
      source={"path": path},
      report=report,
      fingerprint=source_lib.fingerprint(every),
    )
