"""The datasets that can be prepared, by name."""

import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

from data_prep import builder
from data_prep import corpus as corpus_lib
from data_prep import tfds_corpus
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors
from transformer_xl.data import token_file

# Each has a TFDS builder in the package of its name.
BUILDERS = (*token_file.BENCHMARKS, "text")
NAMES = (*BUILDERS, "tfds")
# Variants, the usual one first, and what they are for.
_MODES = {
  "enwik8": {
    "bytes": "the original text",
    "newline_free": "the stream of the published results",
  },
  "lm1b": {
    "standard": "one marker between sentences",
    "double_marker": "two of them, to count as the TensorFlow results do",
  },
}
_WITH_OPTIONS = ("text", "tfds")


def builder_class(name: str) -> type[builder.CorpusBuilder]:
  """Returns the TFDS builder of one of BUILDERS."""
  module = importlib.import_module(f"data_prep.{name}.{name}_dataset_builder")
  return module.Builder


def open_corpus(
  name: str,
  *,
  source: str | None,
  mode: str | None,
  tokenizer: tokenizer_lib.Tokenizer,
  options: Mapping[str, Any],
  cache: pathlib.Path,
) -> corpus_lib.Corpus:
  """Finds a corpus on disk, or downloads it.

  Args:
    name: One of NAMES.
    source: Where the user has it, or None; for `tfds` the dataset's name.
    mode: Variant of a corpus that has several, or None for the usual one.
    tokenizer: Tokenizer of the user's own text; the others bring theirs.
    options: Arguments of `text.corpus.open_corpus`, for the user's own text.
    cache: Folder where downloads are kept.

  Raises:
    UserError: an argument does not fit the dataset, or its text is missing.
  """
  if name not in NAMES:
    raise errors.UserError(
      f"there is no dataset {name!r}; use one of {', '.join(NAMES)}."
    )
  modes = _MODES.get(name, {})
  if mode is not None and not modes:
    raise errors.UserError(
      f"--mode is for {' and '.join(_MODES)}; {name} has none."
    )
  if mode not in (None, *modes):
    uses = ", or ".join(f"{one} for {use}" for one, use in modes.items())
    raise errors.UserError(
      f"--mode={mode} is none of {name}'s modes; use {uses}."
    )
  if options and name not in _WITH_OPTIONS:
    raise errors.UserError(
      "field, valid_source, test_source, valid_fraction and test_fraction are"
      f" for --dataset=text and tfds; {name} has its own splits."
    )
  extra: dict[str, Any] = {} if mode is None else {"mode": mode}
  if name in _WITH_OPTIONS:
    extra = {"tokenizer": tokenizer, **options}
  opener = tfds_corpus if name == "tfds" else builder_class(name)
  return opener.open_corpus(path=source, cache=cache, **extra)
