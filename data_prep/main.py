"""Turns a corpus into token files: python -m data_prep.main --dataset=ptb.

Flags, the choice of the corpus, and the order of the steps. Nothing else.
"""

import dataclasses
import pathlib
import shutil
import sys
from typing import Any
from typing import NoReturn

from absl import app
from absl import flags

from data_prep import array_file
from data_prep import catalog
from data_prep import corpus as corpora
from data_prep import cutoffs
from data_prep import describe
from data_prep import encoding
from data_prep import staging
from data_prep import survey as surveys
from data_prep import tokenizer as tokenizers
from data_prep import vocabulary_file as vocabulary_files
from data_prep.lm1b import corpus as lm1b
from data_prep.text import corpus as text
from transformer_xl import errors
from transformer_xl import vocabulary

FORMAT = 1

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

_DESCRIBE = flags.DEFINE_bool(
  "describe", False, "Show a prepared dataset instead of preparing one."
)


def prepare(
  *,
  dataset: str,
  data_dir: str,
  source: str | None = None,
  name: str | None = None,
  mode: str | None = None,
  tokenizer: str | None = None,
  vocabulary_file: str | None = None,
  lower_case: bool | None = None,
  min_freq: int | None = None,
  max_size: int | None = None,
  **options: Any,
) -> pathlib.Path:
  """Prepares a dataset, or goes on where it was killed.

  The arguments are the flags of the same names; `options` are those for
  --dataset=text alone.

  Returns:
    The dataset's folder, `data_dir`/`name`. If the same call made it before, it
    is left as it is.

  Raises:
    UserError: the source, the text or an option is not right; nothing is left
      in the folder's place.
  """
  request = {k: v for k, v in locals().items() if k not in ("data_dir", "name")}
  final = pathlib.Path(data_dir).expanduser() / (name or dataset)
  if source is None and staging.read_meta(final).get("request") == request:
    return final  # Without downloading it again to see that it is the same.
  cache = final.parent / "downloads"
  own_text = dataset == "text" or options
  corpus = catalog.open_corpus(
    dataset,
    source=source,
    mode=mode,
    tokenizer=tokenizers.of_text(tokenizer or "byte"),
    options=text.Options(**options) if own_text else None,
    cache=cache,
  )
  cut = corpus.tokenizer
  if tokenizer not in (None, cut.kind):
    cut = tokenizers.of_text(tokenizer)
  cut = tokenizers.refine(
    cut,
    lower_case=lower_case,
    min_freq=min_freq,
    max_size=max_size,
    trained=vocabulary_file is not None,
  )
  if vocabulary_file is None and dataset == "lm1b" and cut == corpus.tokenizer:
    vocabulary_file = lm1b.vocabulary_file(path=source, cache=cache)
  given = None
  if vocabulary_file is not None:
    given = vocabulary_files.read(vocabulary_file, cut)
    cut = dataclasses.replace(cut, **given.tokenizer)
  _prepare(final, corpus, cut, given, request)
  return final


def _prepare(
  final: pathlib.Path,
  corpus: corpora.Corpus,
  tokenizer: tokenizers.Tokenizer,
  given: vocabulary_files.VocabularyFile | None,
  request: dict[str, Any],
) -> None:
  """Writes the dataset beside its place and moves it there; once is enough."""
  key = {
    "format": FORMAT,
    "request": request,
    "source": corpus.fingerprint,
    "vocabulary": given and given.sha256,
  }
  if staging.read_meta(final).get("recipe") == staging.hash_of(key):
    return
  with staging.Staging(final, key=key) as stage:
    try:
      meta = _write(corpus, tokenizer, given, stage)
    except errors.UserError:
      stage.discard()
      raise
    stage.publish(
      {"format": FORMAT, "name": final.name, **meta, "request": request}
    )
  if corpus.scratch is not None:
    shutil.rmtree(corpus.scratch)


def _write(
  corpus: corpora.Corpus,
  tokenizer: tokenizers.Tokenizer,
  given: vocabulary_files.VocabularyFile | None,
  stage: staging.Staging,
) -> dict[str, Any]:
  """Takes the three steps from text to token files; returns meta.json."""
  count_symbols = given is None and tokenizer.counts_symbols
  survey = surveys.run(corpus, tokenizer, stage, count_symbols=count_symbols)
  file = given or vocabulary_files.make(corpus, tokenizer, survey, stage)
  staging.write(stage.path(file.name), file.content)
  vocab = file.load()
  splits = encoding.run(corpus, tokenizer, vocab, stage)
  return {
    "dataset": corpus.name,
    "unit": vocab.unit,
    "mode": corpus.mode,
    "tokenizer": file.tokenizer,
    "sentence_markers": corpus.sentence_markers,
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
  tokens = array_file.blocks(stage.path(f"{split}.npy"))
  return cutoffs.suggest(cutoffs.count(tokens, size=vocab.size))


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
    folder = prepare(**given)
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
