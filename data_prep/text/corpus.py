"""Anybody's own text: files of text, records of text, and how it is split."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from data_prep import corpus
from data_prep import source as source_lib
from data_prep import tokenizer as tokenizer_lib
from data_prep.text import files
from data_prep.text import holdout
from data_prep.text import readers
from transformer_xl import errors

_BYTES = tokenizer_lib.of_text("byte")


def open_corpus(
  *,
  path: str | None,
  cache: pathlib.Path | None = None,
  tokenizer: tokenizer_lib.Tokenizer = _BYTES,
  field: str = "text",
  valid_source: str | None = None,
  test_source: str | None = None,
  **fractions: float,
) -> corpus.Corpus:
  """Returns the corpus.

  Args:
    path: A file, a folder, or patterns separated by commas.
    cache: Not used: nothing is downloaded.
    tokenizer: How the text is cut into symbols.
    field: The field of a record, or the column of a table, with the text.
    valid_source: Validation text like `path`, or None to hold out a part of it.
    test_source: Test text, likewise.
    **fractions: How much to hold out, as in `of_splits`.

  Raises:
    UserError: no text is where it should be.
  """
  del cache
  if path is None:
    raise errors.UserError(
      "--dataset=text needs your text: --source=FILE, FOLDER or 'books/*.txt'."
    )
  found, report = files.of_splits(
    source=path, valid_source=valid_source, test_source=test_source
  )
  every = [file for files in found.values() for file in files]
  return of_splits(
    {
      split: functools.partial(readers.read, paths, field=field)
      for split, paths in found.items()
    },
    **fractions,
    name="text",
    tokenizer=tokenizer,
    source={"path": path},
    report=report,
    fingerprint=source_lib.fingerprint(every),
  )


def of_splits(
  splits: Mapping[str, corpus.Split],
  *,
  valid_fraction: float = 0.05,
  test_fraction: float = 0.05,
  tokenizer: tokenizer_lib.Tokenizer,
  **fields: Any,
) -> corpus.Corpus:
  """Returns a corpus of splits; of training text alone a part is held out.

  Args:
    splits: Text by the name of its split.
    valid_fraction: How much to hold out for validation.
    test_fraction: How much to hold out for the test.
    tokenizer: How the text is cut into symbols.
    **fields: Other fields of the corpus.
  """
  if set(splits) == {"train"}:
    splits = holdout.divide(
      splits["train"], valid=valid_fraction, test=test_fraction
    )
  # Characters of validation text need an id, too; for words there is <unk>.
  train_alone = tokenizer.kind != "character" and "train" in splits
  return corpus.Corpus(
    splits=splits,
    tokenizer=tokenizer,
    vocabulary_splits=("train",) if train_alone else tuple(splits),
    **fields,
  )
