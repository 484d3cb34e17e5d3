"""From a corpus to token files: the order of the steps."""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import extensions
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import catalog
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import cutoffs
from transformer_xl.data_prep import describe
from transformer_xl.data_prep import encoding
from transformer_xl.data_prep import mixture as mixture_lib
from transformer_xl.data_prep import staging
from transformer_xl.data_prep import survey
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep import vocabulary_file as vocabulary_file_lib

FORMAT = 1
_BETWEEN_LOOKS_SECONDS = 1.0  # At what another process prepares.


def prepare_beside_others(dataset: str, *, data_dir: str) -> None:
  """Prepares a dataset in its usual form, or waits until another process has.

  If that one was killed, this one prepares it.

  Raises:
    UserError: something else is in the way.
  """
  folder = os.path.join(data_dir, dataset)
  while True:
    try:
      prepare(dataset=dataset, data_dir=data_dir)
      return
    except errors.UserError as error:
      storage.forget(folder)
      if os.path.exists(os.path.join(storage.local(folder), "meta.json")):
        return  # Another process was first.
      if not isinstance(error, staging.BusyError):
        raise
      logging.info("Waiting: %s", error)
    time.sleep(_BETWEEN_LOOKS_SECONDS)


def prepare(
  *,
  dataset: str,
  data_dir: str,
  source: str | None = None,
  name: str | None = None,
  mode: str | None = None,
  tokenizer: str | None = None,
  vocabulary_file: str | None = None,
  extend_vocabulary: bool = False,
  lower_case: bool | None = None,
  min_freq: int | None = None,
  max_size: int | None = None,
  **options: object,
) -> pathlib.Path:
  """Prepares a dataset and returns its folder, `data_dir`/`name`.

  The arguments are the flags of the same names; `options` are those of
  --dataset=text and tfds alone. What the same call has made is left as it is.
  `data_dir` may be in a bucket (gs://BUCKET/FOLDER).

  Raises:
    UserError: the source, the text or an option is wrong; there is no folder.
  """
  request = {
    "dataset": dataset,
    "source": source,
    "mode": mode,
    "tokenizer": tokenizer,
    "vocabulary_file": vocabulary_file,
    "extend_vocabulary": extend_vocabulary,
    "lower_case": lower_case,
    "min_freq": min_freq,
    "max_size": max_size,
    "options": options,
    "extension": extensions.version_of_dataset(dataset),
  }
  texts = {**request, **options, "data_dir": data_dir, "name": name}
  for flag, value in texts.items():
    if value == "":
      raise errors.UserError(
        f"--{flag} is empty; give it a value, or leave it out."
      )
  final = staging.folder_of(data_dir, name or dataset)
  # The files that `request` names may have changed since.
  names_no_file = source is None and vocabulary_file is None
  if names_no_file and staging.read_meta(final).get("request") == request:
    return final  # Without downloading it again to see that it is the same.
  storage.require_writable(str(final))  # Before the work.

  # A prepared vocabulary comes with its tokenizer.
  if vocabulary_file is not None:
    prepared = vocabulary_file_lib.prepared_tokenizer(vocabulary_file)
    _check_vocabulary_options(
      prepared,
      extends=extend_vocabulary,
      chosen={"tokenizer": tokenizer, "lower_case": lower_case},
      limits={"min_freq": min_freq, "max_size": max_size},
    )
    if prepared is not None:
      tokenizer = prepared["kind"]
  corpus = catalog.open_corpus(
    dataset,
    options if mode is None else {"mode": mode, **options},
    tokenizer=tokenizer_lib.of_text(tokenizer or "byte"),
    path=source,
    cache=staging.downloads(final),
  )
  fingerprint = corpus.fingerprint()
  kind = tokenizer or corpus.tokenizer.kind
  is_usual = kind == corpus.tokenizer.kind
  cut = tokenizer_lib.refine(
    corpus.tokenizer if is_usual else tokenizer_lib.of_text(kind),
    lower_case=lower_case,
    min_freq=min_freq,
    max_size=max_size,
    trained=vocabulary_file is not None,
  )
  if corpus.answers is not None and kind != "word":
    raise errors.UserError(
      f"--dataset={dataset} counts its answers in words, not in those of "
      f"--tokenizer={kind}; leave --tokenizer out."
    )
  corpus = corpus.cut_by(cut)
  if extend_vocabulary:
    _check_extension(vocabulary_file, kind)
  if corpus.published_words and vocabulary_file is None:
    vocabulary_file = corpus.published_words()
  given = None
  if vocabulary_file is not None:
    given = vocabulary_file_lib.read(vocabulary_file, cut)
    corpus = corpus.cut_by(dataclasses.replace(cut, **given.cut))

  # All that a dataset depends on, in whatever words it was asked for.
  key = {
    "format": FORMAT,
    "dataset": corpus.name,
    "mode": corpus.mode,
    "source": fingerprint,
    "options": corpus.options,
    "extension": request["extension"],
    "tokenizer": dataclasses.asdict(corpus.tokenizer),
    "vocabulary": given and given.sha256,
    "extends": extend_vocabulary,
  }
  recipe = hashlib.sha256(json.dumps(key).encode("utf-8")).hexdigest()
  if staging.read_meta(final).get("recipe") == recipe:
    return final
  with staging.staged(final) as stage:
    corpus = corpus.unpacked(stage.scratch)
    written, warnings = _write(
      corpus, given, stage.folder, extends=extend_vocabulary
    )
    meta: dict[str, Any] = {
      "format": FORMAT,
      "name": final.name,
      **written,
      "request": request,
      "recipe": recipe,
    }
    if corpus.fingerprint() != fingerprint:
      raise encoding.changed(corpus)
    content = json.dumps(meta, indent=2, ensure_ascii=False) + "\n"
    # A path need not be Unicode; JSON has the same escapes as Python for it.
    data = content.encode("utf-8", "backslashreplace")
    staging.write(stage.folder / "meta.json", data)
    notices: list[str] = []
    if corpus.report is not None:
      starts = {
        split: np.load(stage.folder / f"{split}_documents.npy")
        for split in corpus.splits
      }
      notices = [corpus.report, *describe.documents(meta, starts)]
      splits = meta["splits"].values()
      has_empty = any(entry["num_empty_documents"] for entry in splits)
      if has_empty and not {"document_start", "document_end"} & {*options}:
        notices.append(
          "if a document is more than a record, say where it starts or ends, as"
          " --document_end='^$' does for blank lines"
        )
  for notice in [*notices, *warnings]:
    print(vocabulary.printable(notice), file=sys.stderr)
  return final


def _check_vocabulary_options(
  prepared: tokenizer_lib.Meta | None,
  *,
  extends: bool,
  chosen: dict[str, str | bool | None],
  limits: dict[str, int | None],
) -> None:
  """Raises UserError if a flag could not have an effect with a vocabulary.

  Args:
    prepared: the tokenizer of a prepared vocabulary; None for a mere list.
    extends: whether symbols are added to the vocabulary.
    chosen: the flags that say how text is cut; None if not given.
    limits: the flags that say how many symbols there are; None if not given.
  """
  for flag, limit in limits.items():
    if limit is not None and not extends:
      raise errors.UserError(
        f"--{flag}={limit} limits a vocabulary that is made from the text, but"
        " --vocabulary_file gives all of it; leave one of them out, or add new"
        " symbols with --extend_vocabulary."
      )
  if prepared is None:
    return
  own = {"tokenizer": prepared["kind"], "lower_case": prepared["lower_case"]}
  for flag, choice in chosen.items():
    if choice is not None and choice != own[flag]:
      raise errors.UserError(
        f"--{flag} is {choice}, but the tokenizer of --vocabulary_file has"
        f" {own[flag]}, which is used; leave --{flag} out, or make another"
        " vocabulary."
      )


def _check_extension(vocabulary_file: str | None, kind: str) -> None:
  """Raises UserError unless there is a vocabulary to which symbols can go."""
  if vocabulary_file is None:
    raise errors.UserError(
      "--extend_vocabulary needs the vocabulary to extend:"
      " --vocabulary_file=WORKDIR."
    )
  if kind == "subword":
    raise errors.UserError(
      "--extend_vocabulary is for bytes, characters and words, not subwords,"
      " which are cut by rules that were learned; leave it out: pieces of"
      " subwords spell new words."
    )


def _write(
  corpus: corpus_lib.Corpus,
  given: vocabulary_file_lib.VocabularyFile | None,
  folder: pathlib.Path,
  *,
  extends: bool,
) -> tuple[dict[str, object], list[str]]:
  """Writes everything but meta.json.

  Returns:
    What meta.json says of it, and lines on text that the tokens do not stand
    for.
  """
  count_symbols = extends if given else corpus.tokenizer.counts_symbols
  sizes, symbols, not_utf8 = survey.run(corpus, count_symbols=count_symbols)
  file = given or vocabulary_file_lib.make(corpus, symbols)
  if extends:
    file = vocabulary_file_lib.extend(file, symbols, corpus.tokenizer)
  vocab = file.load()
  mixture: dict[str, object] = {}
  if corpus.mixture:
    mixed = mixture_lib.mix(corpus, vocab)
    corpus = mixed.corpus
    train = dataclasses.replace(
      corpus, splits={"train": corpus.splits["train"]}
    )
    sizes |= survey.run(train, count_symbols=False).sizes
    mixture = {"mixture": mixed.meta}
  name = f"vocabulary.{'json' if vocab.unit == 'subword' else 'txt'}"
  staging.write(folder / name, file.content)
  splits = {
    split: encoding.write_split(corpus, split, vocab, folder, dict(size))
    for split, size in sizes.items()
  }
  warnings = _warnings(corpus, given, vocab, splits)
  if not corpus.published:  # Publishers may have cut within a character.
    warnings += _foreign_bytes(not_utf8)
  made = {"file": name, "size": vocab.size, "sha256": file.sha256}
  tokens = folder / f"{next(iter(splits))}.npy"
  counts = cutoffs.count(tokens, size=vocab.size)
  meta = {
    "dataset": corpus.name,
    "unit": vocab.unit,
    "mode": corpus.mode,
    "tokenizer": file.tokenizer,
    "sentence_markers": corpus.sentence_markers,
    "vocabulary": made,
    "splits": splits,
    "suggested_cutoffs": cutoffs.suggest(counts),
    "source": corpus.source,
    **mixture,
  }
  return meta, warnings


def _foreign_bytes(not_utf8: Mapping[str, str]) -> list[str]:
  """Returns a line on files that are not UTF-8, if there are any."""
  if not not_utf8:
    return []
  origin, place = next(iter(not_utf8.items()))
  what = f"{origin} is not UTF-8 ({place})"
  if len(not_utf8) > 1:
    what = f"{len(not_utf8):,} files are not UTF-8, first {origin} ({place})"
  return [
    f"{what}: such bytes are tokens as they are; convert text, for example with"
    " iconv -f LATIN1 -t UTF-8"
  ]


def _warnings(
  corpus: corpus_lib.Corpus,
  given: vocabulary_file_lib.VocabularyFile | None,
  vocab: vocabulary.Vocabulary,
  splits: Mapping[str, Mapping[str, Any]],
) -> list[str]:
  """Returns lines on text that its tokens do not stand for.

  Args:
    corpus: the text.
    given: the vocabulary that the user gave, if any.
    vocab: the vocabulary.
    splits: the entries of meta.json.
  """
  lines = []
  if given is not None and given.dropout is not None:
    lines.append(
      f"the tokenizer's dropout of {given.dropout:g} is off: the same text gets"
      " the same tokens"
    )
  for split, entry in splits.items():
    share = entry["num_unknown"] / entry["num_tokens"]
    unknown = vocabulary.unknown_warning(share, of=f"the {split} split")
    if unknown is not None:
      lines.append(unknown)
    for name, count in entry.get("special_tokens", {}).items():
      lines.append(
        f"{split}: the text has {name} {count:,} times, and each is the special"
        " token of the tokenizer, not its letters; replace it in the text if"
        " they are meant"
      )
  # Subwords that are made here restore any text.
  if given is not None and isinstance(vocab, vocabulary.SubwordVocabulary):
    lost = encoding.unrestored(corpus, next(iter(splits)), vocab)
    lines += [] if lost is None else [lost]
  return lines
