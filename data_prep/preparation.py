"""From a corpus to token files: the order of the steps."""

import dataclasses
import pathlib
import shutil
import sys
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
from data_prep.lm1b import lm1b_dataset_builder
from data_prep.text import corpus as text_corpus

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
  """Prepares a dataset.

  The arguments are the flags of the same names; `options` are those of
  --dataset=text and tfds alone.

  Returns:
    The dataset's folder, `data_dir`/`name`. A folder that the same call has
    made is left as it is.

  Raises:
    UserError: the source, the text or an option is wrong; there is no folder.
  """
  request = {k: v for k, v in locals().items() if k not in ("data_dir", "name")}
  final = pathlib.Path(data_dir).expanduser() / (name or dataset)
  if source is None and staging.read_meta(final).get("request") == request:
    return final  # Without downloading it again to see that it is the same.
  cache = final.parent / "downloads"
  corpus = catalog.open_corpus(
    dataset,
    source=source,
    mode=mode,
    tokenizer=tokenizer_lib.of_text(tokenizer or "byte"),
    options=text_corpus.Options(**options) if options else None,
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
    vocabulary_file = lm1b_dataset_builder.vocabulary_file(
      path=source, cache=cache
    )
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
  """Writes the dataset unless the same call has already made it."""
  recipe = staging.recipe(
    {
      "format": FORMAT,
      "request": request,
      "source": corpus.fingerprint,
      "vocabulary": given and given.sha256,
    }
  )
  if staging.read_meta(final).get("recipe") == recipe:
    return
  with staging.staged(final) as folder:
    meta = {
      "format": FORMAT,
      "name": final.name,
      **_write(corpus, tokenizer, given, folder),
      "request": request,
      "recipe": recipe,
    }
    staging.write_meta(folder, meta)
  if corpus.report is not None:
    print(corpus.report, file=sys.stderr)
  if corpus.scratch is not None:
    shutil.rmtree(corpus.scratch)


def _write(
  corpus: data_prep_corpus.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  given: vocabulary_file_lib.VocabularyFile | None,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Writes everything but meta.json, and returns that."""
  count_symbols = given is None and tokenizer.counts_symbols
  survey = survey_lib.run(corpus, tokenizer, count_symbols=count_symbols)
  file = given or vocabulary_file_lib.make(corpus, tokenizer, survey.symbols)
  staging.write(folder / file.name, file.content)
  vocab = file.load()
  splits = encoding.run(corpus, tokenizer, vocab, folder)
  tokens = array_file.blocks(folder / f"{next(iter(splits))}.npy")
  counts = cutoffs.count(tokens, size=vocab.size)
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
      split: entry | survey.counts[split]._asdict()
      for split, entry in splits.items()
    },
    "suggested_cutoffs": cutoffs.suggest(counts),
    "source": dict(corpus.source),
  }
