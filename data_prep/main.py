"""Turns a corpus into token files.

Your own text, and what was found in it:

    transformer-xl-data --dataset=text --source=~/books --name=books
    transformer-xl-data --name=books --describe

A benchmark, downloaded or from an archive that you have:

    transformer-xl-data --dataset=ptb
    transformer-xl-data --dataset=wikitext103 --source=wikitext-103-v1.zip

docs/own_text.md and docs/data.md explain the flags.
"""

# Only flags are here; programs call `preparation.prepare`.

from transformer_xl import command_line
from transformer_xl import signals

if __name__ == "__main__":  # Before the imports that take long.
  early = signals.end_at_signals()

import sys
from typing import Any

from absl import flags

from transformer_xl import errors
from transformer_xl.config import extensions
from transformer_xl.config import name_parser
from transformer_xl.config import registry
from transformer_xl.data_prep import catalog
from transformer_xl.data_prep import describe
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep import staging
from transformer_xl.data_prep import tokenizer

# Before the flags are made: those of tasks are made from what is registered.
with command_line.one_line():
  extensions.load_installed()
  given_extensions, _ = command_line.split(sys.argv, "extensions")
  extensions.load(extensions.split(given_extensions or ""))

_STRINGS = {
  "source": (
    "The archive as published, or a folder with its files, instead of a"
    " download. For --dataset=text: a file, a folder, patterns separated by"
    " commas, hf://datasets/OWNER/NAME, or several with weights, a:0.7,b:0.3."
    " For --dataset=tfds: NAME, NAME/CONFIG, or a prepared folder."
  ),
  "name": "The dataset's folder, if not --dataset.",
  "mode": "enwik8: bytes or newline_free; lm1b: standard or double_marker.",
  "vocabulary_file": (
    "A vocabulary to use: that of a run's workdir or of a prepared dataset's"
    " folder, a tokenizers .json, or text with one word per line."
  ),
  "field": "The field or column of records with the text; text.",
  "document_start": (
    "A document starts at each line of this pattern, as '^Chapter', and not at"
    " every record."
  ),
  "document_end": (
    "A document ends with each line of this pattern, as '^$' for an empty one,"
    " and not with every record."
  ),
  "valid_source": "Validation text, like --source.",
  "test_source": "Test text, like --source.",
}
_NUMBERS = {
  "seed": "Synthetic tasks: seed of the text; 0.",
  "num_tokens": "Synthetic tasks: length of the training text; 1000000.",
}
for _name in registry.tasks:
  _task = catalog.synthetic_task(_name)
  for _flag, _option in _task.options.items():
    _before = f"{_NUMBERS[_flag]} " if _flag in _NUMBERS else ""
    _NUMBERS[_flag] = f"{_before}{_name}: {_option.help}; {_option.default}."
  for _flag, _option in _task.test_options().items():
    _NUMBERS[_flag] = f"Synthetic tasks: {_option.help}."
# Other words for the tokenizers.
_TOKENIZERS = {
  "bytes": "byte",
  "char": "character",
  "chars": "character",
  "characters": "character",
  "words": "word",
  "bpe": "subword",
  "subwords": "subword",
}


# The default of a flag that is not given is that of `prepare`.
_FLAGS = (
  flags.DEFINE(
    name_parser.NameParser(catalog.names()),
    "dataset",
    None,
    f"The corpus: {', '.join(catalog.names())}.",
  ),
  flags.DEFINE_string(
    "data_dir", "data", "Folder of the datasets; gs://BUCKET/FOLDER."
  ),
  *(flags.DEFINE_string(name, None, help) for name, help in _STRINGS.items()),
  flags.DEFINE(
    name_parser.NameParser(tokenizer.KINDS, others=_TOKENIZERS),
    "tokenizer",
    None,
    f"What a token is: {', '.join(tokenizer.KINDS)}, or bpe, which is subword;"
    " byte for text.",
  ),
  flags.DEFINE_bool(
    "extend_vocabulary", None, "Add new symbols behind --vocabulary_file's."
  ),
  flags.DEFINE_bool("lower_case", None, "Make the text lower-case."),
  flags.DEFINE_integer("min_freq", None, "Rarer words become <unk>.", 1),
  flags.DEFINE_integer("max_size", None, "Most words or subwords.", 1),
  *(flags.DEFINE_integer(name, None, help) for name, help in _NUMBERS.items()),
  flags.DEFINE_float("valid_fraction", None, "Held out to validate; 0.05."),
  flags.DEFINE_float("test_fraction", None, "Held out for the test; 0.05."),
)
flags.DEFINE_string(
  "extensions",
  "",
  "Files (my_task.py) or modules that register tasks, separated by commas.",
)
_DESCRIBE = flags.DEFINE_bool(
  "describe", False, "Show a prepared dataset instead of preparing one."
)


def main(argv: list[str]) -> None:
  """Prepares or describes a dataset; UserError if that is not possible."""
  del argv
  given: dict[str, Any] = {
    flag.name: flag.value for flag in _FLAGS if flag.value is not None
  }
  if "dataset" not in given and not (_DESCRIBE.value and "name" in given):
    raise errors.UserError(
      "name a corpus: --dataset=text --source=FOLDER for your own text,"
      " --dataset=python_stdlib for one that needs no download; --help lists"
      " the others."
    )
  try:
    if _DESCRIBE.value:
      name = given.get("name") or given["dataset"]
      folder = staging.folder_of(given["data_dir"], name)
      result = describe.describe(folder)
    else:
      with errors.writing_to(given["data_dir"]):
        result = f"{preparation.prepare(**given)} is ready"
  except OSError as error:
    if errors.refusal(error) is not None:
      raise
    where = error.filename or given["data_dir"]
    raise errors.UserError(
      f"{where}: {error.strerror or error}; fix that and run the same command"
      " again."
    ) from None
  print(result)  # Whatever becomes of this line, the dataset is there.


if __name__ == "__main__":
  early.close()  # From here on what was begun is cleaned up.
  command_line.run(main)
