"""Held-out text: the part of a corpus that is kept for validation and test.

Whole documents spread over the corpus are held out if there are enough of
them and they hold about the fraction of the text that was asked for; otherwise
the end of the corpus, cut after a line.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping

from transformer_xl import errors
from transformer_xl.data_prep import corpus
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib

# Multiples of the golden ratio, modulo one, are spread evenly whatever their
# number: held-out documents are neither neighbours nor at regular distances.
_GOLDEN = (math.sqrt(5) - 1) / 2
# A split must expect at least this many documents.
_FEWEST = 2
# They may hold this many times more or less text than their fraction.
_MOST_RATIO = 2
# Unless the user gives another, validation text has this part of the text, and
# test text has as much.
DEFAULT_FRACTION = 0.05


def of_splits(
  splits: dict[str, corpus.Split],
  *,
  valid_fraction: float | None,
  test_fraction: float | None,
  tokenizer: tokenizer_lib.Tokenizer,
  name: str,
  source: Mapping[str, object],
  fingerprint: Callable[[], str],
  options: Mapping[str, object],
) -> corpus.Corpus:
  """Returns a corpus; `divide` is applied if it has training text alone.

  A fraction is None unless the user gave it. UserError if there are other
  splits, too, and a fraction is asked for.
  """
  if set(splits) == {"train"}:
    if valid_fraction is None:
      valid_fraction = DEFAULT_FRACTION
    if test_fraction is None:
      test_fraction = DEFAULT_FRACTION
    splits = divide(splits["train"], valid_fraction, test_fraction)
    options = {**options, "held_out": [valid_fraction, test_fraction]}
  elif valid_fraction or test_fraction:
    flag = "valid_fraction" if valid_fraction else "test_fraction"
    raise errors.UserError(
      f"--{flag} holds a part of training text out where there is no other "
      f"split, and this text has {', '.join(splits)}: leave it out."
    )
  # Characters of validation text need an id, too; for words there is <unk>.
  train_alone = tokenizer.kind != "character" and "train" in splits
  return corpus.Corpus(
    name=name,
    splits=splits,
    tokenizer=tokenizer,
    source=source,
    fingerprint=fingerprint,
    vocabulary_splits=("train",) if train_alone else tuple(splits),
    options=options,
  )


def divide(
  text: corpus.Split, valid_fraction: float, test_fraction: float
) -> dict[str, corpus.Split]:
  """Returns the splits; one of fraction zero is left out."""
  train_fraction = 1 - valid_fraction - test_fraction
  if not (valid_fraction >= 0 and test_fraction >= 0 and train_fraction > 0):
    raise errors.UserError(
      f"{valid_fraction=} and {test_fraction=} must be at least 0, and their"
      " sum below 1; they are fractions of the text."
    )
  shares = {
    "train": train_fraction,
    "valid": valid_fraction,
    "test": test_fraction,
  }
  shares = {split: share for split, share in shares.items() if share > 0}
  if len(shares) == 1:
    return {"train": text}

  # Where each split's part of [0, 1) starts and stops.
  ends = [*itertools.accumulate(shares.values())][:-1] + [1.0]
  ranges = dict(zip(shares, itertools.pairwise([0.0, *ends]), strict=True))
  num_bytes = dict.fromkeys(shares, 0)
  number = -1
  for piece in text():
    number += piece.starts_document
    for split, (start, stop) in ranges.items():
      if start <= number * _GOLDEN % 1 < stop:
        num_bytes[split] += len(piece.data)
  total = sum(num_bytes.values())

  # Documents of unequal length can be a larger or a smaller part of the text
  # than of the documents.
  held_out = [split for split in shares if split != "train"]
  have_their_shares = all(
    shares[split] * total / _MOST_RATIO
    <= num_bytes[split]
    <= shares[split] * total * _MOST_RATIO
    for split in held_out
  )
  num_documents = number + 1
  if num_documents * min(shares.values()) >= _FEWEST and have_their_shares:
    return {
      split: functools.partial(_documents, text, *limits)
      for split, limits in ranges.items()
    }
  targets = [0.0]
  for end in ends:
    targets.append(end * total)
  middles = [(a + b) / 2 for a, b in itertools.pairwise(targets)]
  cuts = [0]
  for target, (lowest, highest) in zip(
    targets[1:-1], itertools.pairwise(middles), strict=True
  ):
    cuts.append(_cut_at(text, target, lowest=lowest, highest=highest))
  cuts.append(total + 1)  # Empty documents at the end are at the end.
  return {
    split: functools.partial(_stretch, text, start, stop)
    for split, (start, stop) in zip(
      shares, itertools.pairwise(cuts), strict=True
    )
  }


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


def _cut_at(
  text: corpus.Split, target: float, *, lowest: float, highest: float
) -> int:
  """Returns a byte number near `target` where the text may be cut.

  It lies between `lowest` and `highest`, so that no two cuts meet, unless these
  are less than a character apart.
  """
  position = 0
  for piece in text():
    if position + len(piece.data) > target:
      return position + _end_of_words(
        piece.data,
        int(target) - position,
        lowest=int(lowest) - position,
        highest=int(highest) - position,
        starts_document=piece.starts_document,
      )
    position += len(piece.data)
  return position


def _end_of_words(
  data: bytes,
  near: int,
  *,
  lowest: int,
  highest: int,
  starts_document: bool,
) -> int:
  """Returns where to cut data: after a line, else a word, else a character.

  It is more than `lowest`, which may lie before the data, and at most
  `highest`. A document begins after a line.
  """
  first = max(lowest, 0)
  for separator in (b"\n", b" "):
    if end := data.find(separator, near, highest) + 1:
      return end
    if end := data.rfind(separator, first, near) + 1:
      return end
    if starts_document and lowest < 0:
      return 0
  while 0 < near < len(data) and data[near] & 0xC0 == 0x80:
    near -= 1  # Back to the first byte of a UTF-8 character.
  return near
