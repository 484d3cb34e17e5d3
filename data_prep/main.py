"""Turns a corpus into token files.

    python -m data_prep.main --dataset=ptb --data_dir=data

Flags and dispatch. Nothing else: programs call `preparation.prepare`.
"""

import pathlib
import sys
from typing import Any
from typing import NoReturn

from absl import app
from absl import flags

from data_prep import catalog
from data_prep import describe
from data_prep import preparation
from data_prep import tokenizer
from transformer_xl import errors

# A flag that is not given leaves the default to `prepare`.
_FLAGS = (
  flags.DEFINE_enum(
    "dataset", None, catalog.NAMES, "The corpus.", required=True
  ),
  flags.DEFINE_string(
    "data_dir", None, "Datasets are folders in this one.", required=True
  ),
  flags.DEFINE_string(
    "source",
    None,
    "The archive as published, or a folder of its files, instead of a download."
    " For --dataset=text: a file, a folder, or patterns with commas between.",
  ),
  flags.DEFINE_string("name", None, "The dataset's folder, if not --dataset."),
  flags.DEFINE_string(
    "mode",
    None,
    "enwik8: bytes or newline_free; lm1b: standard or double_marker.",
  ),
  flags.DEFINE_enum(
    "tokenizer", None, tokenizer.KINDS, "What a token is; bytes for text."
  ),
  flags.DEFINE_string(
    "vocabulary_file",
    None,
    "A vocabulary to use: a prepared dataset's folder, a tokenizers .json, or"
    " text with a word a line.",
  ),
  flags.DEFINE_bool("lower_case", None, "Make the text lower-case."),
  flags.DEFINE_integer(
    "min_freq", None, "Words that are rarer become <unk>.", lower_bound=1
  ),
  flags.DEFINE_integer(
    "max_size", None, "Most words or subwords.", lower_bound=1
  ),
  flags.DEFINE_string(
    "field", None, "The field of .jsonl records with the text; text."
  ),
  flags.DEFINE_string("valid_source", None, "Validation text, like --source."),
  flags.DEFINE_string("test_source", None, "Test text, like --source."),
  flags.DEFINE_float(
    "valid_fraction", None, "Part of the text held out for validation; 0.05."
  ),
  flags.DEFINE_float(
    "test_fraction", None, "Part of the text held out for the test; 0.05."
  ),
)

_DESCRIBE = flags.DEFINE_bool(
  "describe", False, "Show a prepared dataset instead of preparing one."
)


def _exit(message: str) -> NoReturn:
  print(f"error: {message}", file=sys.stderr)
  sys.exit(2)


def main(argv: list[str]) -> None:
  """Prepares what the flags say; a user's mistake is one line and status 2."""
  del argv  # Flags only.
  values: dict[str, Any] = {flag.name: flag.value for flag in _FLAGS}
  given = {name: value for name, value in values.items() if value is not None}
  try:
    if _DESCRIBE.value:
      place = pathlib.Path(
        given["data_dir"], given.get("name", given["dataset"])
      )
      print(describe.describe(place.expanduser()))
      return
    folder = preparation.prepare(**given)
  except errors.UserError as error:
    _exit(str(error))
  except OSError as error:
    where = error.filename or given["data_dir"]
    _exit(
      f"{where}: {error.strerror or error}; mend that and run the same command"
      " again, it goes on."
    )
  print(f"{folder} is ready")


if __name__ == "__main__":
  app.run(main)
