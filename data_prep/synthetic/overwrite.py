"""Recall with overwriting: a key gets two values, and the last one counts.

    c=7 . a=2 c=3 . a=5 . . ?c 3 . . ?a 5

A key is free again as soon as it was asked for, so old values of a key are
never far. Keys and values are those of `recall`.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import recall
from transformer_xl.data_prep.synthetic import task

_RATE = 0.25  # Probability that a key is given where there is room for it.


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_keys: int,
  max_distance: int,
) -> list[task.Document]:
  """One text with queries up to `max_distance` behind the value that counts.

  The first value of a key is up to `max_distance` before the second. Both
  distances have uniform logarithms.
  """
  words = [task.FILLER] * num_tokens
  room = [task.FILLER] * 2
  distances: dict[int, int] = {}  # Keys are the places of the answers.
  free = [*recall.KEYS[:num_keys]]
  busy: dict[int, str] = {}  # Keys are the places of the answers.
  for place in range(num_tokens):
    if place in busy:
      free.append(busy.pop(place))
    is_taken = words[place] != task.FILLER
    if not free or is_taken or generator.random() >= _RATE:
      continue
    second = place + task.log_uniform(generator, 1, max_distance)
    distance = task.log_uniform(generator, recall.SHORTEST, max_distance)
    query = second + distance
    # The slice is shorter where the text ends.
    if words[query : query + 2] != room or words[second] != task.FILLER:
      continue
    key = free.pop(generator.integers(len(free)))
    values = generator.choice(list(recall.VALUES), size=2, replace=False)
    last_value = str(values[1])
    words[place] = f"{key}={values[0]}"
    words[second] = f"{key}={last_value}"
    words[query : query + 2] = [f"?{key}", last_value]
    distances[query + 1] = distance
    busy[query + 1] = key
  return [task.Document(words, sorted(distances.items()))]


@registry.tasks.register("overwrite")
class Overwrite(task.Task):
  """Asks for the newer of two values."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_keys": task.Option(3, 1, len(recall.KEYS), "number of keys"),
    "max_distance": task.Option(
      48,
      recall.SHORTEST,
      10**8,
      "longest distance from the last value to its query",
    ),
  }
  write = staticmethod(write)
  has_documents = False
