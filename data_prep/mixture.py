"""Several texts in one training text, each with its share of the tokens.

    --source=hf://datasets/OWNER/NAME:0.7,~/books:0.3

A weight is the share of a source among the tokens that training reads, to
within a document. Documents take turns by a schedule that depends on their
lengths and on the weights alone: at any place in the training text, the sources
have about their shares of what is before it. The text ends when every source
was read once, and sources that are too short for their shares are read again.
It is written like any other, so a position in it is a function of the step.
"""

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import encoding
from transformer_xl.data_prep import piece as piece_lib

_WEIGHTED = re.compile(r"(?P<source>.+):(?P<weight>\d*\.?\d+)")
# A source that would be read more often is a mistake in the weights.
_MOST_PASSES = 100


class WeightedSource(NamedTuple):
  """A source as the user names it, and its share of the training tokens."""

  source: str
  weight: float


class Mixed(NamedTuple):
  """A corpus whose training text is mixed, and what meta.json says of it."""

  corpus: corpus_lib.Corpus
  meta: list[dict[str, object]]


def parse(path: str) -> list[WeightedSource] | None:
  """Reads SOURCE:WEIGHT,SOURCE:WEIGHT; None if there are no weights.

  The weights that are returned add up to 1.

  Raises:
    UserError: a source has no weight, or a weight is 0.
  """
  if os.path.exists(storage.expanded(path)):
    return None
  texts = path.split(",")
  matches = [_WEIGHTED.fullmatch(text) for text in texts]
  if not any(matches):
    return None
  found = []
  for text, match in zip(texts, matches, strict=True):
    if match is None or not float(match["weight"]):
      raise errors.UserError(
        f"--source={path}: {text or 'an empty part'} needs a weight above 0;"
        " give one to each source, as in a:0.7,b:0.3."
      )
    found.append(WeightedSource(match["source"], float(match["weight"])))
  total = math.fsum(weight for _, weight in found)
  return [WeightedSource(source, weight / total) for source, weight in found]


def combine(
  path: str,
  sources: Sequence[WeightedSource],
  corpora: Sequence[corpus_lib.Corpus],
) -> corpus_lib.Corpus:
  """Returns a corpus of several, whose training text is still to be mixed.

  Validation and test text are those of all, one after the other.

  Raises:
    UserError: a source has no training text.
  """
  parts = []
  for (source, weight), corpus in zip(sources, corpora, strict=True):
    if "train" not in corpus.splits:
      raise errors.UserError(
        f"{source} has no training text, only {', '.join(corpus.splits)}; leave"
        " it out."
      )
    parts.append(corpus_lib.Part(source, weight, corpus.splits["train"]))
  splits: dict[str, corpus_lib.Split] = {}
  for split in corpus_lib.SPLITS:
    texts = [one.splits[split] for one in corpora if split in one.splits]
    if split == "train":  # As it is mixed: every newline counts as a symbol.
      texts = [functools.partial(_separated, text) for text in texts]
    if texts:
      splits[split] = functools.partial(_chained, texts)
  origins = [
    {**corpus.source, "weight": part.weight}
    for part, corpus in zip(parts, corpora, strict=True)
  ]
  reports = [corpus.report for corpus in corpora if corpus.report]
  kind = corpora[0].tokenizer.kind
  return dataclasses.replace(
    corpora[0],
    splits=splits,
    mixture=tuple(parts),
    source={"path": path, "sources": origins},
    fingerprint=functools.partial(_fingerprint, corpora),
    options={
      "weights": [part.weight for part in parts],
      "sources": [corpus.options for corpus in corpora],
    },
    vocabulary_splits=tuple(splits) if kind == "character" else ("train",),
    report="\n".join(reports),
  )


def mix(
  corpus: corpus_lib.Corpus, vocabulary: vocabulary_lib.Vocabulary
) -> Mixed:
  """Orders the documents of a corpus's parts by their numbers of tokens.

  Raises:
    UserError: a part is empty, or so short that it would be read again and
      again.
  """
  parts = corpus.mixture
  lengths = [_lengths(part.text, vocabulary) for part in parts]
  totals = [int(each.sum()) for each in lengths]
  end = max(n / p.weight for n, p in zip(totals, parts, strict=True))
  for part, total in zip(parts, totals, strict=True):
    if not total:
      raise errors.UserError(
        f"{part.source} has no training text; give it some, or leave it out."
      )
    if end * part.weight > _MOST_PASSES * total:
      raise errors.UserError(
        f"{part.source} has {total} tokens, and its share of"
        f" {part.weight:.3g} would take {end * part.weight:.0f}: it would be"
        f" read more than {_MOST_PASSES} times; give it a lower weight."
      )
  order = schedule(lengths, [part.weight for part in parts])
  meta: list[dict[str, object]] = []
  for number, (part, each) in enumerate(zip(parts, lengths, strict=True)):
    num_documents = int(np.sum(order == number))
    passes = num_documents // len(each)
    rest = num_documents % len(each)
    num_tokens = passes * int(each.sum()) + int(each[:rest].sum())
    meta.append(
      {
        "source": part.source,
        "weight": part.weight,
        "num_tokens": num_tokens,
        "passes": round(num_tokens / int(each.sum()), 4),
      }
    )
  train = functools.partial(_in_order, [part.text for part in parts], order)
  splits: dict[str, corpus_lib.Split] = dict(corpus.splits)
  splits["train"] = train
  return Mixed(dataclasses.replace(corpus, splits=splits), meta)


def schedule(
  lengths: Sequence[np.ndarray], weights: Sequence[float]
) -> np.ndarray:
  """Returns the source of each document of a mixture, in the order of reading.

  The next document is always of the source with the fewest tokens so far in
  relation to its weight, the first of several. So a source's document is due
  when its tokens before it, divided by its weight, are reached: the order is
  that of these times.

  Args:
    lengths: tokens of each document, an array of positive integers for each
      source.
    weights: shares of the sources, above 0.
  """
  ends = [
    int(each.sum()) / weight
    for each, weight in zip(lengths, weights, strict=True)
  ]
  end = max(ends)
  times = []
  sources = []
  for number, each in enumerate(lengths):
    passes = math.ceil(end / ends[number])
    # Whole numbers, so that the times of a pass are those of any other.
    before = np.cumsum(np.concatenate([[0], np.tile(each, passes)]))[:-1]
    due = before / weights[number]
    due = due[due < end]
    times.append(due)
    sources.append(np.full(len(due), number, np.int32))
  # Stable: of equal times the first source's comes first.
  order = np.argsort(np.concatenate(times), kind="stable")
  return np.concatenate(sources)[order]


def _lengths(
  text: corpus_lib.Split, vocabulary: vocabulary_lib.Vocabulary
) -> np.ndarray:
  """Returns the number of tokens of each document."""
  result: list[int] = []
  for piece in _separated(text):
    if piece.starts_document:
      result.append(0)
    result[-1] += len(encoding.ids(piece, vocabulary))
  return np.array(result, np.int64)


def _in_order(
  texts: Sequence[corpus_lib.Split], order: np.ndarray
) -> piece_lib.Pieces:
  """Yields a document of the next text in `order`, again and again."""
  streams = [_endless(text) for text in texts]
  ahead = [next(stream) for stream in streams]
  for number in order:
    yield ahead[number]
    for piece in streams[number]:
      if piece.starts_document:
        ahead[number] = piece
        break
      yield piece


def _endless(text: corpus_lib.Split) -> Iterator[piece_lib.Piece]:
  while True:
    yield from _separated(text)


def _separated(text: corpus_lib.Split) -> piece_lib.Pieces:
  """Yields a text with a newline after every document, whichever follows it."""
  return piece_lib.separated(text(), final_newline=True)


def _chained(texts: Sequence[corpus_lib.Split]) -> piece_lib.Pieces:
  return itertools.chain.from_iterable(text() for text in texts)


def _fingerprint(corpora: Sequence[corpus_lib.Corpus]) -> str:
  return "\n".join(corpus.fingerprint() for corpus in corpora)
