"""The datasets that can be prepared, by name."""

import pathlib
from collections.abc import Mapping
from typing import Any

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import tfds_corpus
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep.synthetic import task as task_lib

# Options that a user's own text has, by the dataset that reads it.
_SHARED = (
  *("field", "document_start", "document_end"),
  *("valid_fraction", "test_fraction"),
)
_OWN_TEXT = {
  "text": ("valid_source", "test_source", *_SHARED),
  "tfds": _SHARED,
}


def names() -> tuple[str, ...]:
  """All datasets: published corpora, a user's own text, synthetic tasks."""
  return (*registry.datasets, *_OWN_TEXT, *registry.tasks)


def synthetic_task(name: str) -> type[task_lib.Task]:
  """The task of a name."""
  task = registry.tasks[name]
  assert issubclass(task, task_lib.Task)
  return task


def builder_class(name: str) -> type[builder.CorpusBuilder]:
  """The TFDS builder of a published corpus, or of `text`."""
  if name == "text":
    # Late: the builder of text reads formats that no other one needs.
    from transformer_xl.data_prep.text import text_dataset_builder

    return text_dataset_builder.Builder
  found = registry.datasets[name]
  assert issubclass(found, builder.CorpusBuilder)
  return found


def _options(name: str) -> tuple[str, ...]:
  """The options that a dataset has."""
  if name in _OWN_TEXT:
    return _OWN_TEXT[name]
  if name in registry.tasks:
    task = synthetic_task(name)
    return ("seed", "num_tokens", *task.options, *task.test_options())
  return ("mode",) if builder_class(name).MODES else ()


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
  if name not in names():
    known = ", ".join(names())
    raise errors.UserError(f"there is no dataset {name!r}; use one of {known}.")
  if not {*_options(name)}.issuperset(options):
    by_dataset = {other: _options(other) for other in names()}
    tokenizer_lib.refuse_others([*options], by_dataset, "dataset", name)
  modes = builder_class(name).MODES if name in registry.datasets else {}
  if "mode" in options and options["mode"] not in modes:
    uses = ", or ".join(f"{mode} for {use}" for mode, use in modes.items())
    raise errors.UserError(
      f"--mode={options['mode']} is none of {name}'s modes; use {uses}."
    )
  if name in registry.tasks:
    numbers: dict[str, Any] = {**options}
    task = synthetic_task(name)
    return task_lib.open_corpus(name, task, path=path, **numbers)
  if name in ("text", "tfds"):
    options = {"tokenizer": tokenizer, **options}
  opener = tfds_corpus if name == "tfds" else builder_class(name)
  return opener.open_corpus(path=path, cache=cache, **options)
