"""State tracking: five items that trade places, in the group S5.

    1-2 4-5 2-3 ? 2 3 1 5 4

Five items start in the order 1 2 3 4 5. `1-2` swaps what is in the first and
the second place. At the end the order is asked for. Keeping it up to date is a
word problem of S5, which no fixed number of attention or linear recurrent
layers is known to solve for all lengths, and an LSTM can (Liu et al. 2023,
Merrill et al. 2024). The distance is the number of swaps.
"""

import itertools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

NUM_ITEMS = 5
SWAPS = [*itertools.combinations(range(NUM_ITEMS), 2)]
QUESTION = "?"


def write(
  num_tokens: int, generator: np.random.Generator, *, max_distance: int
) -> list[task.Document]:
  """Documents of up to `max_distance` swaps, with a uniform logarithm."""

  def document() -> task.Document:
    length = task.log_uniform(generator, 1, max_distance)
    words = []
    items = [*range(1, NUM_ITEMS + 1)]
    for index in generator.integers(len(SWAPS), size=length):
      left, right = SWAPS[index]
      items[left], items[right] = items[right], items[left]
      words.append(f"{left + 1}-{right + 1}")
    words += [QUESTION, *map(str, items)]
    # The last item is what is left, so it shows nothing.
    answers = [(length + 1 + place, length) for place in range(NUM_ITEMS - 1)]
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("permutation")
class Permutation(task.Task):
  """Asks for the order after swaps."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(24, 2, 10**8, "most swaps of a document"),
  }
  write = staticmethod(write)
  suite_updates = 1000
