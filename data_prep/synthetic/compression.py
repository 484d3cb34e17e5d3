"""How long a string can a memory hold? After MAD's compression task.

    7 2 9 2 14 # 7 2 9 2 14

A string of random words and a marker, behind which the string comes again. In
MAD (Poli et al. 2024, section 3) a decoder restores all 31 words, each one of
15, from the output at the marker alone. A language model has no such decoder:
what it kept at the marker shows in the words that it predicts afterwards, and
it may look at the string again if its memory reaches. So this tests how much a
memory of a fixed size holds: unlike in `copy`, the string itself is as long as
the distance. Its length has a uniform logarithm, up to the published one.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

NUM_WORDS = 15
MARKER = "#"


def write(
  num_tokens: int, generator: np.random.Generator, *, max_distance: int
) -> list[task.Document]:
  """Documents with strings of up to `max_distance` - 1 words."""

  def document() -> task.Document:
    distance = task.log_uniform(generator, 2, max_distance)
    string = [
      str(word) for word in generator.integers(NUM_WORDS, size=distance - 1)
    ]
    answers = [(distance + index, distance) for index in range(len(string))]
    return task.Document([*string, MARKER, *string], answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("compression")
class Compression(task.Task):
  """Repeats a string that is as long as its distance."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(
      32, 2, 10**8, "most words of a string with its marker"
    ),
  }
  write = staticmethod(write)
