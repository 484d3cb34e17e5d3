"""Describes a prepared dataset to people."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_prep import cutoffs
from data_prep import staging
from transformer_xl import storage
from transformer_xl.data import vocabulary

_NUM_SYMBOLS = 10
_SAMPLE_TOKENS = {"byte": 400, "character": 400, "word": 100, "subword": 100}
_UNITS = ("tokens", "documents", "bytes", "characters", "words", "lines")


def describe(folder: pathlib.Path) -> str:
  """Returns counts, vocabulary, coverage and a sample; UserError if damaged."""
  vocab = vocabulary.load(str(folder))  # UserError if it is not a dataset.
  return "\n".join(_lines(folder, vocab, staging.read_meta(folder)))


def detokenize(text: str) -> str:
  """Returns tokenised text as it would be printed, roughly."""
  text = re.sub(r" @([-,.])@ ", r"\1", text)
  text = re.sub(r" ([,.;:?!%)\]]|'\w*|n't)(?=\s|$)", r"\1", text)
  return re.sub(r"([(\[$]) ", r"\1", text)


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
  split, entry = next(iter(meta["splits"].items()))
  path = pathlib.Path(
    storage.cached(str(folder), f"{split}.npy", entry["sha256"])
  )
  counts = cutoffs.count(path, size=vocab.size)
  yield f"vocabulary: {vocab.size:,} symbols (id, symbol, count in {split})"
  head = range(min(_NUM_SYMBOLS, vocab.size))
  tail = range(max(_NUM_SYMBOLS, vocab.size - _NUM_SYMBOLS), vocab.size)
  for i in [*head, *tail]:
    if i == tail.start:
      yield "  ..."
    yield f"  {i:>8} {vocab.symbol(i):20} {counts[i]:>12,}"
  if cuts := meta["suggested_cutoffs"]:
    yield f"adaptive softmax: suggested cutoffs {cuts}, coverage of {split}:"
    starts, stops = [0, *cuts], [*cuts, vocab.size]
    shares = cutoffs.coverage(counts, cuts)
    for start, stop, share in zip(starts, stops, shares, strict=True):
      yield f"  {start:>8} to {stop:>8} {share:>8.2%}"
  else:
    yield "adaptive softmax: the vocabulary is too small to need one"
  yield f"start of {split}:"
  tokens = np.load(path, mmap_mode="r")
  sample = vocab.decode(tokens[: _SAMPLE_TOKENS[vocab.unit]])
  yield detokenize(sample) if vocab.unit == "word" else sample
