"""The datasets that can be prepared, by name."""

import importlib
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
  mode: str | None,
  tokenizer: tokenizer_lib.Tokenizer,
  options: Mapping[str, Any],
  **where: Any,
) -> corpus_lib.Corpus:
  """Finds a corpus on disk, or downloads it: `path` and `cache` say where.

  The tokenizer and the options are for the user's own text alone.

  Raises:
    UserError: an argument does not fit the dataset, or its text is missing.
  """
  if name not in NAMES:
    known = ", ".join(NAMES)
    raise errors.UserError(f"there is no dataset {name!r}; use one of {known}.")
  modes = _MODES.get(name, {})
  if mode is not None and mode not in modes:
    uses = (f"{mode} for {use}" for mode, use in modes.items())
    raise errors.UserError(
      f"--mode={mode} is none of {name}'s modes; use {', or '.join(uses)}."
      if modes
      else f"--mode is for {' and '.join(_MODES)}; {name} has none."
    )
  if name in _WITH_OPTIONS:
    options = {"tokenizer": tokenizer, **options}
  elif options:
    raise errors.UserError(
      "field, valid_source, test_source, valid_fraction and test_fraction are"
      f" for --dataset=text and tfds; {name} has its own splits."
    )
  if mode is not None:
    options = {"mode": mode}
  opener = tfds_corpus if name == "tfds" else builder_class(name)
  return opener.open_corpus(**where, **options)
