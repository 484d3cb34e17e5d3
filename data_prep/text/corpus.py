"""Anybody's own text: files of text, records of text, and how it is split."""

import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Where the text of each split is."""

  # Validation and test text, or None to hold out a part of the source.
  valid_source: str | None = None
  test_source: str | None = None
  valid_fraction: float = 0.05
  test_fraction: float = 0.05
  field: str = "text"  # The field of a record, or the column of a table.


def open_corpus(
  *,
  path: str | None,
  cache: pathlib.Path | None = None,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
  options: Options | None = None,
) -> corpus.Corpus:
  """Returns the corpus.

  Args:
    path: A file, a folder, or patterns separated by commas.
    cache: Not used: nothing is downloaded.
    tokenizer: How the text is cut into symbols; bytes by default.
    options: Where validation and test text are, and the field with text.

  Raises:
    UserError: no text is where it should be.
  """
  del cache
  options = options or Options()
  if path is None:
    raise errors.UserError(
      "--dataset=text needs your text: --source=FILE, FOLDER or 'books/*.txt'."
    )
  found, report = files.of_splits(
    source=path,
    valid_source=options.valid_source,
    test_source=options.test_source,
  )
  return of_splits(
    {
      split: functools.partial(readers.read, paths, field=options.field)
      for split, paths in found.items()
    },
    name="text",
    tokenizer=tokenizer or tokenizer_lib.of_text("byte"),
    options=options,
    source={"path": path},
    report=report,
    fingerprint=source_lib.fingerprint(
      [p for ps in found.values() for p in ps]
    ),
  )


def of_splits(
  splits: Mapping[str, corpus.Split],
  *,
  name: str,
  tokenizer: tokenizer_lib.Tokenizer,
  options: Options,
  source: Mapping[str, Any],
  fingerprint: str,
  report: str | None = None,
) -> corpus.Corpus:
  """Returns a corpus of splits; a part of the text is held out if it has one.

  Args:
    splits: Text by the name of its split.
    name: Name of the corpus.
    tokenizer: How the text is cut into symbols.
    options: How much text to hold out.
    source: Where the text is from, for people.
    fingerprint: A string that changes when the source changes.
    report: What was read, for people.
  """
  if set(splits) == {"train"}:
    splits = holdout.divide(
      splits["train"], valid=options.valid_fraction, test=options.test_fraction
    )
  # Characters of validation text need an id, too; for words there is <unk>.
  counted = tuple(splits) if tokenizer.kind == "character" else ("train",)
  return corpus.Corpus(
    name=name,
    splits=splits,
    tokenizer=tokenizer,
    vocabulary_splits=counted if "train" in splits else tuple(splits),
    source=source,
    fingerprint=fingerprint,
    report=report,
  )
