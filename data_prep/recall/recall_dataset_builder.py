"""Synthetic text that asks for values at known distances (`data.recall`).

Every pair is asked for once. Its key then rests for the longest distance, so a
query's older pairs are out of the way: a model has to see far, and not to tell
the newer of two values.
"""

import functools
import io
import pathlib

import numpy as np

from transformer_xl import errors
from transformer_xl.data import recall
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece
from transformer_xl.data_prep import tokenizer

SHORTEST = 4  # Distance from a pair to its query, in tokens.
_RATE = 0.25  # Probability that a pair is put where there is room for one.
_SHARES = {"train": 1.0, "valid": 0.1, "test": 0.1}  # Of `num_tokens`.


class Builder(builder.CorpusBuilder):
  """Builds the text of each split, one record per megabyte."""

  HOMEPAGE = "https://arxiv.org/abs/1901.02860"
  records = staticmethod(builder.by_piece)

  @staticmethod
  def open_corpus(
    *,
    path: str | None,
    cache: pathlib.Path | None = None,
    seed: int = 0,
    num_tokens: int = 1_000_000,
    num_keys: int = 3,
    max_distance: int = 96,
  ) -> corpus_lib.Corpus:
    """Returns the corpus, which depends on nothing but these numbers.

    UserError if one is out of range.
    """
    del cache  # Nothing is downloaded.
    if path is not None:
      raise errors.UserError(
        f"--dataset={recall.NAME} makes its text itself; leave --source out."
      )
    chosen = {
      "seed": seed,
      "num_tokens": num_tokens,
      "num_keys": num_keys,
      "max_distance": max_distance,
    }
    _check(chosen)
    return corpus_lib.Corpus(
      name=recall.NAME,
      splits={
        split: functools.partial(_pieces, index, share, **chosen)
        for index, (split, share) in enumerate(_SHARES.items())
      },
      tokenizer=tokenizer.Tokenizer(kind="word"),
      source={"path": "generated", **chosen},
      fingerprint=lambda: recall.NAME,  # There are no files.
      options=chosen,
    )


def _check(chosen: dict[str, int]) -> None:
  """Raises UserError unless every number is in its range."""
  limits = {
    "seed": (0, 2**32 - 1),
    "num_tokens": (1000, 10**10),
    "num_keys": (1, len(recall.KEYS)),
    "max_distance": (SHORTEST, chosen["num_tokens"] // 100),
  }
  for name, (least, most) in limits.items():
    if not least <= chosen[name] <= most:
      raise errors.UserError(
        f"--{name}={chosen[name]} must be between {least} and {most}."
      )


def _pieces(
  index: int,
  share: float,
  *,
  seed: int,
  num_tokens: int,
  num_keys: int,
  max_distance: int,
) -> piece.Pieces:
  generator = np.random.default_rng([seed, index])
  data = text(
    round(share * num_tokens),
    generator,
    num_keys=num_keys,
    max_distance=max_distance,
  )
  return piece.cut(io.BytesIO(data.encode()), origin=recall.NAME)


def text(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_keys: int,
  max_distance: int,
) -> str:
  """Returns a text whose queries are up to `max_distance` behind their pairs.

  The logarithm of the distance is distributed uniformly.
  """
  words = [recall.FILLER] * num_tokens
  room = [recall.FILLER] * 2
  ratio = max_distance / SHORTEST
  free = [*recall.KEYS[:num_keys]]
  resting: dict[int, str] = {}  # By the end of their rest.
  for place in range(num_tokens):
    if place in resting:
      free.append(resting.pop(place))
    is_taken = words[place] != recall.FILLER
    if not free or is_taken or generator.random() >= _RATE:
      continue
    query = place + round(SHORTEST * ratio ** generator.random())
    if words[query : query + 2] != room:
      continue
    key = free.pop(generator.integers(len(free)))
    value = recall.VALUES[generator.integers(len(recall.VALUES))]
    words[place] = recall.pair(key, value)
    words[query : query + 2] = recall.query(key), value
    resting[query + max_distance] = key
  return " ".join(words)
