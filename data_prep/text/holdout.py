"""Held-out text: the part of a corpus that is kept for validation and test.

Whole documents spread over the corpus are held out if there are enough of
them; otherwise the end of the corpus, cut after a line.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from data_prep import corpus
from data_prep import piece as piece_lib
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors

# Multiples of the golden ratio, modulo one, are spread evenly whatever their
# number: held-out documents are neither neighbours nor at regular distances.
_GOLDEN = (math.sqrt(5) - 1) / 2
# A split must expect at least this many documents.
_FEWEST = 2


def of_splits(
  splits: dict[str, corpus.Split],
  fractions: dict[str, float],
  *,
  tokenizer: tokenizer_lib.Tokenizer,
  **fields: Any,
) -> corpus.Corpus:
  """Returns a corpus; `divide` is applied if it has training text alone.

  UserError if it has other splits, too, and a fraction is asked for.
  """
  if set(splits) == {"train"}:
    splits = divide(splits["train"], **fractions)
  elif asked := [name for name, share in fractions.items() if share]:
    raise errors.UserError(
      f"--{asked[0]} holds a part of training text out where there is no other "
      f"split, and this text has {', '.join(splits)}: leave it out."
    )
  # Characters of validation text need an id, too; for words there is <unk>.
  train_alone = tokenizer.kind != "character" and "train" in splits
  return corpus.Corpus(
    splits=splits,
    tokenizer=tokenizer,
    vocabulary_splits=("train",) if train_alone else tuple(splits),
    **fields,
  )


def divide(
  text: corpus.Split, valid_fraction: float = 0.05, test_fraction: float = 0.05
) -> dict[str, corpus.Split]:
  """Returns the splits; one of fraction zero is left out."""
  valid, test = valid_fraction, test_fraction
  if not (valid >= 0 and test >= 0 and valid + test < 1):
    raise errors.UserError(
      f"{valid_fraction=} and {test_fraction=} must be at least 0, and their"
      " sum below 1; they are fractions of the text."
    )
  shares = {"train": 1 - valid - test, "valid": valid, "test": test}
  shares = {split: share for split, share in shares.items() if share > 0}
  if len(shares) == 1:
    return {"train": text}
  num_documents = num_bytes = 0
  for piece in text():
    num_documents += piece.starts_document
    num_bytes += len(piece.data)
  # Where each split's part of [0, 1) ends.
  ends = [*itertools.accumulate(shares.values())][:-1] + [1.0]
  read: Callable[..., piece_lib.Pieces] = _documents
  if num_documents * min(shares.values()) < _FEWEST:
    read, ends = _stretch, [_cut_at(text, end * num_bytes) for end in ends]
  ranges = zip(shares, itertools.pairwise([0, *ends]), strict=True)
  return {split: functools.partial(read, text, *r) for split, r in ranges}


def _documents(
  text: corpus.Split, start: float, stop: float
) -> piece_lib.Pieces:
  number = -1
  for piece in text():
    number += piece.starts_document
    if start <= number * _GOLDEN % 1 < stop:
      yield piece


def _stretch(text: corpus.Split, start: int, stop: int) -> piece_lib.Pieces:
  return piece_lib.stretch(text(), start, stop)


def _cut_at(text: corpus.Split, target: float) -> int:
  """Returns the end of the line that the byte number `target` is in."""
  position = 0
  for piece in text():
    if position + len(piece.data) > target:
      return position + _line_end(piece.data, int(target) - position)
    position += len(piece.data)
  return position


def _line_end(data: bytes, near: int) -> int:
  """Returns where to cut data: after a line, else a word, else a character."""
  for separator in (b"\n", b" "):
    if end := data.find(separator, near) + 1:
      return end
    if end := data.rfind(separator, 0, near) + 1:
      return end
  while 0 < near < len(data) and data[near] & 0xC0 == 0x80:
    near -= 1  # Back to the first byte of a UTF-8 character.
  return near
