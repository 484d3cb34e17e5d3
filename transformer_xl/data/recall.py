"""The recall task: pairs of a key and a value, and queries for the values.

A text is words, such as

    . c=7 . . a=2 . ?c 7 . . . ?a 2 .

in which `c=7` gives the key c a value, `?c` asks for it, and the answer
follows. Queries and their distances are read from the words alone.
"""

import string
from typing import NamedTuple

import jaxtyping as jt
import numpy as np

from transformer_xl.data import vocabulary

NAME = "recall"
KEYS = string.ascii_lowercase
VALUES = string.digits
FILLER = "."


def pair(key: str, value: str) -> str:
  """The word that gives a key its value."""
  return f"{key}={value}"


def query(key: str) -> str:
  """The word that asks for the value of a key."""
  return f"?{key}"


class Queries(NamedTuple):
  """The queries of a text, in its order; Q of them."""

  positions: jt.Int[np.ndarray, "Q"]  # The answer is the token after.
  distances: jt.Int[np.ndarray, "Q"]  # From the last pair of the key.


def queries(
  tokens: jt.Int[np.ndarray, "T"], vocab: vocabulary.Vocabulary
) -> Queries:
  """Finds the queries with a pair before them and an answer behind."""
  ids = {symbol: index for index, symbol in enumerate(vocab.symbols)}
  pairs = np.full(len(tokens), -1)  # The last pair of each query's key.
  for key in KEYS:
    words = [ids[w] for v in VALUES if (w := pair(key, v)) in ids]
    given = np.flatnonzero(np.isin(tokens, words))
    asked = np.flatnonzero(tokens[:-1] == ids.get(query(key), -1))
    number = np.searchsorted(given, asked)
    pairs[asked[number > 0]] = given[number[number > 0] - 1]
  positions = np.flatnonzero(pairs >= 0)
  return Queries(positions, positions - pairs[positions])
