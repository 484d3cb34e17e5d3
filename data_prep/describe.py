"""Describes a prepared dataset to people."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_prep import array_file
from data_prep import cutoffs
from transformer_xl.data import vocabulary

_NUM_SYMBOLS = 10
_SAMPLE_TOKENS = {"byte": 400, "character": 400, "word": 100, "subword": 100}
_COUNTS = (
  "num_tokens",
  "num_documents",
  "num_bytes",
  "num_characters",
  "num_words",
  "num_lines",
)


def describe(folder: pathlib.Path) -> str:
  """Returns counts, vocabulary, coverage and a sample; UserError if damaged."""
  vocab = vocabulary.load(str(folder))  # UserError if it is not a dataset.
  meta = json.loads((folder / "meta.json").read_text("utf-8"))
  split = next(iter(meta["splits"]))
  path = folder / f"{split}.npy"
  tokens = np.load(path, mmap_mode="r")
  counts = cutoffs.count(array_file.blocks(path), size=vocab.size)
  sample = vocab.decode(tokens[: _SAMPLE_TOKENS[vocab.unit]])
  if vocab.unit == "word":
    sample = detokenize(sample)
  lines = [
    *_header(folder, meta),
    *_symbols(vocab, counts, split),
    *_bins(meta["suggested_cutoffs"], counts, split),
    f"start of {split}:",
    sample,
  ]
  return "\n".join(lines)


def detokenize(text: str) -> str:
  """Returns tokenised text as it would be printed, roughly."""
  text = re.sub(r" @([-,.])@ ", r"\1", text)
  text = re.sub(r" ([,.;:?!%)\]]|'\w*|n't)(?=\s|$)", r"\1", text)
  return re.sub(r"([(\[$]) ", r"\1", text)


def _header(folder: pathlib.Path, meta: dict[str, Any]) -> Iterator[str]:
  mode = f", mode {meta['mode']}" if meta["mode"] else ""
  yield f"{folder}: {meta['dataset']}{mode}, a token is a {meta['unit']}"
  yield f"tokenizer: {json.dumps(meta['tokenizer'])}"
  yield f"{'split':8}" + "".join(f"{name[4:]:>14}" for name in _COUNTS)
  for split, entry in meta["splits"].items():
    yield f"{split:8}" + "".join(f"{entry[name]:>14,}" for name in _COUNTS)


def _symbols(
  vocab: vocabulary.Vocabulary, counts: np.ndarray, split: str
) -> Iterator[str]:
  """Yields the first and the last symbols with their counts."""
  yield f"vocabulary: {vocab.size:,} symbols (id, symbol, count in {split})"
  head = range(min(_NUM_SYMBOLS, vocab.size))
  tail = range(max(_NUM_SYMBOLS, vocab.size - _NUM_SYMBOLS), vocab.size)
  for i in [*head, *tail]:
    if i == tail.start:
      yield "  ..."
    yield f"  {i:>8} {vocab.symbol(i):20} {counts[i]:>12,}"


def _bins(cuts: list[int], counts: np.ndarray, split: str) -> Iterator[str]:
  """Yields the share of the tokens in each bin of the adaptive softmax."""
  if not cuts:
    yield "adaptive softmax: the vocabulary is too small to need one"
    return
  yield f"adaptive softmax: suggested cutoffs {cuts}, coverage of {split}:"
  bounds = [0, *cuts, len(counts)]
  for i, share in enumerate(cutoffs.coverage(counts, cuts)):
    yield f"  {bounds[i]:>8} to {bounds[i + 1]:>8} {share:>8.2%}"
