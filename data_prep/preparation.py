"""From a corpus to token files: the order of the steps."""

import dataclasses
import pathlib
import shutil
from typing import Any

from data_prep import array_file
from data_prep import catalog
from data_prep import corpus as data_prep_corpus
from data_prep import cutoffs
from data_prep import encoding
from data_prep import staging
from data_prep import survey as survey_lib
from data_prep import tokenizer as tokenizer_lib
from data_prep import vocabulary_file as vocabulary_file_lib
from data_prep.lm1b import corpus as lm1b_corpus
from data_prep.text import corpus as text_corpus
from transformer_xl import errors
from transformer_xl.data import vocabulary

FORMAT = 1


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
    tokenizer=tokenizer_lib.of_text(tokenizer or "byte"),
    options=text_corpus.Options(**options) if own_text else None,
    cache=cache,
  )
  cut = corpus.tokenizer
  if tokenizer not in (None, cut.kind):
    cut = tokenizer_lib.of_text(tokenizer)
  cut = tokenizer_lib.refine(
    cut,
    lower_case=lower_case,
    min_freq=min_freq,
    max_size=max_size,
    trained=vocabulary_file is not None,
  )
  if vocabulary_file is None and dataset == "lm1b" and cut == corpus.tokenizer:
    vocabulary_file = lm1b_corpus.vocabulary_file(path=source, cache=cache)
  given = None
  if vocabulary_file is not None:
    given = vocabulary_file_lib.read(vocabulary_file, cut)
    cut = dataclasses.replace(cut, **given.tokenizer)
  _prepare(final, corpus, cut, given, request)
  return final


def _prepare(
  final: pathlib.Path,
  corpus: data_prep_corpus.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  given: vocabulary_file_lib.VocabularyFile | None,
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
  corpus: data_prep_corpus.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  given: vocabulary_file_lib.VocabularyFile | None,
  stage: staging.Staging,
) -> dict[str, Any]:
  """Takes the three steps from text to token files; returns meta.json."""
  count_symbols = given is None and tokenizer.counts_symbols
  survey = survey_lib.run(corpus, tokenizer, stage, count_symbols=count_symbols)
  file = given or vocabulary_file_lib.make(corpus, tokenizer, survey, stage)
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
