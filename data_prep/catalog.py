"""The datasets that can be prepared, by name."""

import importlib
import pathlib
from typing import Any

from data_prep import builder
from data_prep import corpus as data_prep_corpus
from data_prep import tfds_corpus
from data_prep import tokenizer as tokenizer_lib
from data_prep.text import corpus as text_corpus
from transformer_xl import errors
from transformer_xl.data import token_file

# Each has a TFDS builder in the package of its name.
BUILDERS = (*token_file.BENCHMARKS, "text")
NAMES = (*BUILDERS, "tfds")
_WITH_MODES = ("enwik8", "lm1b")
_WITH_OPTIONS = ("text", "tfds")


def builder_class(name: str) -> type[builder.CorpusBuilder]:
  """Returns the TFDS builder of one of BUILDERS."""
  return importlib.import_module(
    f"data_prep.{name}.{name}_dataset_builder"
  ).Builder


def open_corpus(
  name: str,
  *,
  source: str | None,
  mode: str | None,
  tokenizer: tokenizer_lib.Tokenizer,
  options: text_corpus.Options | None,
  cache: pathlib.Path,
) -> data_prep_corpus.Corpus:
  """Finds a corpus on disk, or downloads it.

  Args:
    name: One of NAMES.
    source: Where the user has it, or None; for `tfds` the dataset's name.
    mode: Variant of a corpus that has several, or None for the usual one.
    tokenizer: Tokenizer of the user's own text; the others bring theirs.
    options: Splits and fields of the user's own text; None for the others.
    cache: Folder where downloads are kept.

  Raises:
    UserError: an argument does not fit the dataset, or its text is missing.
  """
  if name not in NAMES:
    raise errors.UserError(
      f"there is no dataset {name!r}; use one of {', '.join(NAMES)}."
    )
  if mode is not None and name not in _WITH_MODES:
    raise errors.UserError(
      f"--mode is for {' and '.join(_WITH_MODES)}; {name} has none."
    )
  if options is not None and name not in _WITH_OPTIONS:
    raise errors.UserError(
      "field, valid_source, test_source, valid_fraction and test_fraction are"
      f" for --dataset=text and tfds; {name} has its own splits."
    )
  extra: dict[str, Any] = {} if mode is None else {"mode": mode}
  if name in _WITH_OPTIONS:
    extra = {
      "tokenizer": tokenizer,
      "options": options or text_corpus.Options(),
    }
  if name == "tfds":
    return tfds_corpus.open_corpus(path=source, cache=cache, **extra)
  return builder_class(name).open_corpus(path=source, cache=cache, **extra)
