"""The datasets that can be prepared, by name."""

import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

from transformer_xl import errors
from transformer_xl.data import token_file
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import tfds_corpus
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep.synthetic import task as task_lib

# Each has a TFDS builder in the package of its name.
BUILDERS = (*token_file.BENCHMARKS, "text")
NAMES = (*BUILDERS, "tfds", *token_file.SYNTHETIC)
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
_SHARED = ("field", "valid_fraction", "test_fraction")


def synthetic_task(name: str) -> task_lib.Task:
  """Returns one of the tasks of `token_file.SYNTHETIC`."""
  module = importlib.import_module(f"transformer_xl.data_prep.synthetic.{name}")
  return module.TASK


TASKS = {name: synthetic_task(name) for name in token_file.SYNTHETIC}
_OPTIONS = dict.fromkeys(NAMES, ()) | {
  **dict.fromkeys(_MODES, ("mode",)),
  "text": ("valid_source", "test_source", *_SHARED),
  "tfds": _SHARED,
  **{
    name: ("seed", "num_tokens", *task.options) for name, task in TASKS.items()
  },
}


def builder_class(name: str) -> type[builder.CorpusBuilder]:
  """Returns the TFDS builder of one of BUILDERS."""
  module = importlib.import_module(
    f"transformer_xl.data_prep.{name}.{name}_dataset_builder"
  )
  return module.Builder


def open_corpus(
  name: str,
  options: Mapping[str, object],
  *,
  tokenizer: tokenizer_lib.Tokenizer,
  path: str | None,
  cache: pathlib.Path,
) -> corpus_lib.Corpus:
  """Finds a corpus at the `path`, or downloads it to the folder `cache`.

  The tokenizer is for the user's own text alone. A UserError is raised if an
  option does not fit the dataset, or if its text is missing.
  """
  if name not in NAMES:
    known = ", ".join(NAMES)
    raise errors.UserError(f"there is no dataset {name!r}; use one of {known}.")
  tokenizer_lib.refuse_others([*options], _OPTIONS, "dataset", name)
  modes = _MODES.get(name, {})
  if "mode" in options and options["mode"] not in modes:
    uses = ", or ".join(f"{mode} for {use}" for mode, use in modes.items())
    raise errors.UserError(
      f"--mode={options['mode']} is none of {name}'s modes; use {uses}."
    )
  if name in TASKS:
    numbers: dict[str, Any] = {**options}
    return task_lib.open_corpus(name, TASKS[name], path=path, **numbers)
  if name in ("text", "tfds"):
    options = {"tokenizer": tokenizer, **options}
  opener = tfds_corpus if name == "tfds" else builder_class(name)
  return opener.open_corpus(path=path, cache=cache, **options)
