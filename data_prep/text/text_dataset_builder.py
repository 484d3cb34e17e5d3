"""TFDS builder of your own text; needs no TensorFlow."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable

from transformer_xl import errors
from transformer_xl.data_prep import boundaries as boundaries_lib
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import mixture
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep.text import files
from transformer_xl.data_prep.text import holdout
from transformer_xl.data_prep.text import hub_dataset
from transformer_xl.data_prep.text import readers

_BYTES = tokenizer_lib.of_text("byte")


class Builder(builder.CorpusBuilder):
  """Builds your own text, one record per document."""

  HOMEPAGE = "https://jsonlines.org"
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Put files of text into the folder; those named train, valid and test are
  splits.
  """

  @staticmethod
  def open_corpus(
    *,
    path: str | None,
    cache: pathlib.Path | None = None,
    field: str | None = None,
    valid_source: str | None = None,
    test_source: str | None = None,
    document_start: str | None = None,
    document_end: str | None = None,
    tokenizer: tokenizer_lib.Tokenizer = _BYTES,
    valid_fraction: float | None = None,
    test_fraction: float | None = None,
  ) -> corpus_lib.Corpus:
    """Returns the corpus.

    A source is a file, a folder, or patterns separated by commas; a dataset of
    the Hub, as in `hub_dataset`; or several of these with weights, as in
    `mixture`. The field is that of a record, or the column of a table, with
    the text. A document is a file, a record or a row, unless lines say where
    documents start or end, as in `boundaries`. Fractions are held out as in
    `holdout.divide`. UserError if there is no text.
    """
    del cache
    boundaries = boundaries_lib.parse(document_start, document_end)
    if path is None:
      raise errors.UserError(
        "--dataset=text needs your text: --source=FILE, FOLDER or '*.txt'."
      )
    weighted = mixture.parse(path)
    if weighted is None:
      corpus, _ = _open(
        path,
        field=field,
        boundaries=boundaries,
        valid_source=valid_source,
        test_source=test_source,
        tokenizer=tokenizer,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
      )
      return corpus
    if valid_source is not None or test_source is not None:
      raise errors.UserError(
        "--valid_source and --test_source are for one source, and --source="
        f"{path} has several, each with its own splits; leave them out."
      )
    corpora = []
    source_of: dict[str, int] = {}  # Its number, by the real path of each file.
    for number, (source, _) in enumerate(weighted):
      corpus, files_of_source = _open(
        source,
        field=field,
        boundaries=boundaries,
        is_part=True,
        tokenizer=tokenizer,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
      )
      corpora.append(corpus)
      for file in files_of_source:
        other = source_of.setdefault(os.path.realpath(file), number)
        if other != number:
          raise errors.UserError(
            f"--source={path}: {weighted[other][0]} and {source} both have "
            f"{file}, so text that one holds out could be training text of the "
            "other; name it in one of them."
          )
    return mixture.combine(path, weighted, corpora)


def _open(
  path: str,
  *,
  field: str | None,
  boundaries: boundaries_lib.Boundaries | None,
  tokenizer: tokenizer_lib.Tokenizer,
  valid_fraction: float | None,
  test_fraction: float | None,
  valid_source: str | None = None,
  test_source: str | None = None,
  is_part: bool = False,
) -> tuple[corpus_lib.Corpus, list[pathlib.Path]]:
  """Returns the corpus of one source, and its files.

  `is_part` says that it is one of several sources.
  """
  origin = {"path": path}
  fingerprint: Callable[[], str] | None = None
  if hub_dataset.PREFIX in path and "," in path:
    raise errors.UserError(
      f"--source={path} names several sources; give each its share of the"
      " training text, as in hf://datasets/OWNER/NAME:0.7,FOLDER:0.3."
    )
  if path.startswith(hub_dataset.PREFIX):
    if valid_source is not None or test_source is not None:
      raise errors.UserError(
        "--valid_source and --test_source are for your own files, and"
        f" --source={path} brings its splits; leave them out."
      )
    found = hub_dataset.download(path)
    selection = found.selection
    fingerprint = found.fingerprint
    origin["revision"] = found.address
  else:
    selection = files.select(
      source=path, valid_source=valid_source, test_source=test_source
    )
  every = [file for paths in selection.splits.values() for file in paths]
  if fingerprint is None:
    fingerprint = functools.partial(source_lib.fingerprint, every)
  has_fields = any(map(readers.has_fields, every))
  if field is not None and not has_fields and not is_part:
    raise errors.UserError(
      f"--field={field} is for records and tables (.jsonl, .csv, .parquet,"
      " .arrow), and none is among the files that were found"
      f" ({selection.report}); leave it out."
    )
  corpus = holdout.of_splits(
    {
      s: functools.partial(
        readers.read, paths, field=field or "text", boundaries=boundaries
      )
      for s, paths in selection.splits.items()
    },
    valid_fraction=valid_fraction,
    test_fraction=test_fraction,
    name="text",
    tokenizer=tokenizer,
    source=origin,
    fingerprint=fingerprint,
    options={
      "field": field or "text",
      "num_files": {s: len(paths) for s, paths in selection.splits.items()},
      **(boundaries.options() if boundaries else {}),
    },
  )
  lines = [selection.report]
  for split in corpus.splits:
    if split not in selection.splits:
      lines.append(f"{split}: held out")
  return dataclasses.replace(corpus, report="; ".join(lines)), every
