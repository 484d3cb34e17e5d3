"""Recall: pairs of a key and a value, and queries at known distances.

    . c=7 . . a=2 . ?c 7 . . . ?a 2 .

`c=7` gives the key c a value, `?c` asks for it, and the answer follows. Every
pair is asked for once. Its key then rests for the longest distance, so a
query's older pairs are out of the way: a model has to see far, and not to tell
the newer of two values.
"""

import string
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

SHORTEST = 4  # Distance from a pair to its query, in tokens.
KEYS = string.ascii_lowercase
VALUES = string.digits
_RATE = 0.25  # Probability that a pair is put where there is room for one.


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_keys: int,
  max_distance: int,
) -> list[task.Document]:
  """One text whose queries are up to `max_distance` behind their pairs.

  The logarithm of the distance is distributed uniformly.
  """
  words = [task.FILLER] * num_tokens
  room = [task.FILLER] * 2
  distances: dict[int, int] = {}  # By the place of the answer.
  free = [*KEYS[:num_keys]]
  resting: dict[int, str] = {}  # By the end of their rest.
  for place in range(num_tokens):
    if place in resting:
      free.append(resting.pop(place))
    is_taken = words[place] != task.FILLER
    if not free or is_taken or generator.random() >= _RATE:
      continue
    query = place + task.log_uniform(generator, SHORTEST, max_distance)
    if words[query : query + 2] != room:
      continue
    key = free.pop(generator.integers(len(free)))
    value = VALUES[generator.integers(len(VALUES))]
    words[place] = f"{key}={value}"
    words[query : query + 2] = f"?{key}", value
    distances[query + 1] = query - place
    resting[query + max_distance] = key
  return [task.Document(words, sorted(distances.items()))]


@registry.tasks.register("recall")
class Recall(task.Task):
  """Asks for values at known distances."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_keys": task.Option(3, 1, len(KEYS), "number of keys"),
    "max_distance": task.Option(
      96, SHORTEST, 10**8, "longest distance from a pair to its query"
    ),
  }
  write = staticmethod(write)
  has_documents = False
