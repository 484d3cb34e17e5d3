"""Multi-query associative recall, the MQAR of Arora et al. 2023, section 4.

    k4 v9 k1 v0 k7 v3 k1 v0 . . k7 v3 k4 v9 . .

A document starts with pairs of a key and a value. Then each key comes once
more, and its value has to follow. The gaps have a power law, so that most
queries come soon and a few come late. Unlike in `recall`, a key and its value
are two words, a query looks like a pair, and all pairs wait at once. Documents
have from one pair to the number that is asked for, since a model finds out what
to do where there are few, as in the paper's training data.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

WORDS = 16  # Number of keys, and of values, that documents draw from.
EXPONENT = 0.01  # The paper's; a gap g has a probability as g**(EXPONENT - 1).


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_pairs: int,
  max_distance: int,
) -> list[task.Document]:
  """Documents of up to `num_pairs` pairs, each asked for once."""

  def document() -> task.Document:
    count = int(generator.integers(1, num_pairs + 1))
    # Queries take one of these slots of two words each.
    longest = max_distance * count // num_pairs
    num_slots = max(count, (longest - 2 * count) // 2 + 1)
    probabilities = np.arange(1, num_slots + 1) ** (EXPONENT - 1)
    probabilities /= probabilities.sum()
    keys = generator.choice(WORDS, size=count, replace=False)
    values = generator.choice(WORDS, size=count)
    slots = generator.choice(
      num_slots, size=count, replace=False, p=probabilities
    )
    words = []
    for key, value in zip(keys, values, strict=True):
      words += [f"k{key}", f"v{value}"]
    words += [task.FILLER] * (2 * num_slots)
    distances = {}
    for pair, slot in enumerate(slots):
      query = 2 * count + 2 * int(slot)
      words[query : query + 2] = words[2 * pair : 2 * pair + 2]
      distances[query + 1] = query - 2 * pair
    return task.Document(words, sorted(distances.items()))

  return task.fill(num_tokens, document)


def check(*, num_pairs: int, max_distance: int) -> None:
  """Raises a UserError if there is no room for the queries."""
  least = 4 * num_pairs - 2
  if max_distance < least:
    raise errors.UserError(
      f"--max_distance={max_distance} leaves no room for the queries of "
      f"--num_pairs={num_pairs}; make it at least {least}."
    )


@registry.tasks.register("mqar")
class MQAR(task.Task):
  """Asks once for each of several pairs."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_pairs": task.Option(6, 1, WORDS, "pairs in a document"),
    "max_distance": task.Option(
      30, 2, 10**8, "longest distance from a pair to its query"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(check)
  suite_updates = 800
