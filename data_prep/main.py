"""Turns a corpus into token files: python -m data_prep.main --dataset=ptb.

Flags, the choice of the corpus, and the order of the steps. Nothing else.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
from absl import app
from absl import flags

from data_prep import corpus as corpora
from data_prep import cutoffs
from data_prep import encoding
from data_prep import staging
from data_prep import survey as surveys
from data_prep import tokenizer as tokenizers
from data_prep import vocabulary_file as vocabulary_files
from data_prep.ptb import corpus as ptb
from data_prep.python_stdlib import corpus as python_stdlib
from data_prep.text import corpus as text
from transformer_xl import errors
from transformer_xl import vocabulary

FORMAT = 1
DATASETS = ("ptb", "python_stdlib", "text")

# A flag that is not given leaves the default to `prepare`.
_FLAGS = (
  flags.DEFINE_enum("dataset", None, DATASETS, "The corpus.", required=True),
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
  flags.DEFINE_enum(
    "tokenizer", None, tokenizers.KINDS, "What a token is; bytes for text."
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


def prepare(
  *,
  dataset: str,
  data_dir: str,
  source: str | None = None,
  name: str | None = None,
  tokenizer: str | None = None,
  vocabulary_file: str | None = None,
  lower_case: bool | None = None,
  min_freq: int | None = None,
  max_size: int | None = None,
  field: str = "text",
  valid_source: str | None = None,
  test_source: str | None = None,
  valid_fraction: float = 0.05,
  test_fraction: float = 0.05,
) -> pathlib.Path:
  """Prepares a dataset, or goes on where it was killed.

  The arguments are the flags of the same names.

  Returns:
    The dataset's folder, `data_dir`/`name`.

  Raises:
    UserError: the source, the text or an option is not right; nothing is left
      in the folder's place.
  """
  final = pathlib.Path(data_dir).expanduser() / (name or dataset)
  staging.refuse_existing(final)
  kind = tokenizers.of_text(tokenizer or "byte")
  options = text.Options(
    source=source,
    valid_source=valid_source,
    test_source=test_source,
    valid_fraction=valid_fraction,
    test_fraction=test_fraction,
    field=field,
  )
  corpus = _open_corpus(dataset, options, kind, final.parent / "downloads")
  kind = kind if tokenizer else corpus.tokenizer
  kind = tokenizers.refine(
    kind, lower_case=lower_case, min_freq=min_freq, max_size=max_size
  )
  given = None
  if vocabulary_file is not None:
    given = vocabulary_files.read(vocabulary_file, kind)
  key = {
    "format": FORMAT,
    "corpus": [corpus.name, corpus.mode, corpus.fingerprint],
    "tokenizer": repr(kind),
    "vocabulary": given and given.sha256,
    "splits": repr(options),
  }
  with staging.Staging(final, key=key) as stage:
    try:
      stage.publish(_write(corpus, kind, given, stage) | {"name": final.name})
    except errors.UserError:
      stage.discard()
      raise
  return final


def _open_corpus(
  dataset: str,
  options: text.Options,
  kind: tokenizers.Tokenizer,
  cache: pathlib.Path,
) -> corpora.Corpus:
  if dataset == "text":
    return text.open_corpus(options, kind)
  if dataset == "python_stdlib":
    return python_stdlib.open_corpus(path=options.source)
  return ptb.open_corpus(path=options.source, cache=cache)


def _write(
  corpus: corpora.Corpus,
  tokenizer: tokenizers.Tokenizer,
  given: vocabulary_files.VocabularyFile | None,
  stage: staging.Staging,
) -> dict[str, Any]:
  """Takes the three steps from text to token files; returns meta.json."""
  count_symbols = given is None and tokenizer.counts_symbols
  survey = surveys.run(corpus, tokenizer, stage, count_symbols=count_symbols)
  file = given or vocabulary_files.make(corpus, tokenizer, survey)
  staging.write(stage.path(file.name), file.content)
  vocab = file.load()
  splits = encoding.run(corpus, tokenizer, vocab, stage)
  return {
    "format": FORMAT,
    "name": corpus.name,
    "unit": vocab.unit,
    "mode": corpus.mode,
    "tokenizer": file.tokenizer,
    "vocabulary": {
      "file": file.name,
      "size": vocab.size,
      "sha256": file.sha256,
    },
    "splits": {
      split: entry | dataclasses.asdict(survey.counts[split])
      for split, entry in splits.items()
    },
    "suggested_cutoffs": _suggest(stage, next(iter(splits)), vocab),
    "source": dict(corpus.source),
  }


def _suggest(
  stage: staging.Staging, split: str, vocab: vocabulary.Vocabulary
) -> list[int]:
  tokens = np.load(stage.path(f"{split}.npy"), mmap_mode="r")
  return cutoffs.suggest(cutoffs.count(tokens, size=vocab.size))


def main(argv: list[str]) -> None:
  """Prepares what the flags say; a user's mistake is one line and status 2."""
  del argv  # Flags only.
  values: dict[str, Any] = {flag.name: flag.value for flag in _FLAGS}
  given = {name: value for name, value in values.items() if value is not None}
  try:
    folder = prepare(**given)
  except (errors.UserError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  print(f"{folder} is ready")


if __name__ == "__main__":
  app.run(main)
