"""Describes a prepared dataset to people."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import cutoffs

_NUM_SYMBOLS = 10
_SAMPLE_TOKENS = {"byte": 400, "character": 400, "word": 100, "subword": 100}
_UNITS = ("tokens", "documents", "bytes", "characters", "words", "lines")


def describe(folder: pathlib.Path) -> str:
  """Returns counts, vocabulary, coverage and a sample; UserError if damaged.

  Control characters are escaped.
  """
  vocab = vocabulary.load(str(folder))  # UserError if it is not a dataset.
  meta = token_file.read_meta(str(folder))
  if not meta.get("splits"):
    raise errors.UserError(
      f"{folder} has a vocabulary and no text; name the dataset to describe."
    )
  try:
    return vocabulary.printable("\n".join(_lines(folder, vocab, meta)))
  except (LookupError, TypeError, ValueError, AttributeError) as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    raise errors.UserError(
      f"{folder}/meta.json is damaged or does not fit the dataset ({reason});"
      f" delete {folder} and prepare it again."
    ) from None


def documents(
  meta: Mapping[str, Any], starts: Mapping[str, np.ndarray]
) -> Iterator[str]:
  """Yields how many documents each split has, and how long they are.

  Args:
    meta: the content of meta.json.
    starts: where documents start in each split.
  """
  for split, entry in meta["splits"].items():
    lengths = np.diff(starts[split], append=entry["num_tokens"])
    if len(lengths) < 2:
      yield f"{split}: one document of {entry['num_tokens']:,} tokens"
      continue
    # Datasets of earlier versions do not state it.
    num_empty = entry.get("num_empty_documents", 0)
    empty = f"; {num_empty:,} empty, each a blank line" if num_empty else ""
    yield (
      f"{split}: {len(lengths):,} documents of {lengths.min():,} to"
      f" {lengths.max():,} tokens, {int(np.median(lengths)):,} in the median"
      f"{empty}"
    )


def _lines(
  folder: pathlib.Path, vocab: vocabulary.Vocabulary, meta: dict[str, Any]
) -> Iterator[str]:
  mode = f", mode {meta['mode']}" if meta["mode"] else ""
  yield f"{folder}: {meta['dataset']}{mode}, a token is a {meta['unit']}"
  yield f"tokenizer: {json.dumps(meta['tokenizer'])}"
  yield f"{'split':8}" + "".join(f"{unit:>14}" for unit in _UNITS)
  for split, entry in meta["splits"].items():
    numbers = (f"{entry[f'num_{unit}']:>14,}" for unit in _UNITS)
    yield f"{split:8}" + "".join(numbers)
  files = {
    split: token_file.open_split(str(folder), split) for split in meta["splits"]
  }
  yield from documents(meta, {s: file.documents for s, file in files.items()})
  split, file = next(iter(files.items()))
  path = pathlib.Path(storage.cached(str(folder), f"{split}.npy", file.sha256))
  counts = cutoffs.count(path, size=vocab.size)
  for name, entry in meta["splits"].items():
    if num_unknown := entry.get("num_unknown"):
      share = num_unknown / entry["num_tokens"]
      yield f"{name}: {num_unknown:,} tokens are unknown ({share:.2%})"
  yield f"vocabulary: {vocab.size:,} symbols (id, symbol, count in {split})"
  order = np.arange(vocab.size)
  if vocab.unit == "byte":  # Their ids say nothing of how frequent they are.
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
  head = order[:_NUM_SYMBOLS]
  tail = order[_NUM_SYMBOLS:][-_NUM_SYMBOLS:]
  for place, i in enumerate([*head, *tail]):
    if place == _NUM_SYMBOLS:
      yield "  ..."
    yield f"  {i:>8} {vocab.symbol(int(i)):20} {counts[i]:>12,}"
  if cuts := meta["suggested_cutoffs"]:
    yield f"adaptive softmax: suggested cutoffs {cuts}, coverage of {split}:"
    starts = [0, *cuts]
    stops = [*cuts, vocab.size]
    shares = cutoffs.coverage(counts, cuts)
    for start, stop, share in zip(starts, stops, shares, strict=True):
      yield f"  {start:>8} to {stop:>8} {share:>8.2%}"
  else:
    yield (
      "adaptive softmax: no cutoffs are suggested, since the vocabulary is "
      "small, or its symbols are about equally frequent"
    )
  yield f"start of {split}:"
  yield vocab.decode(file.tokens[: _SAMPLE_TOKENS[vocab.unit]])
