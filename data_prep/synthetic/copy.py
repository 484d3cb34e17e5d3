"""Copying at a distance: a string, filler, and the string again.

    d a c f . . . . . . > d a c f

The distance is that from a symbol to its copy, the same for a whole document.
"""

import string
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

SYMBOLS = string.ascii_lowercase[:16]
MARKER = ">"


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_symbols: int,
  max_distance: int,
) -> list[task.Document]:
  """Documents that copy `num_symbols` symbols over up to `max_distance` words.

  The logarithm of the distance is distributed uniformly.
  """

  def document() -> task.Document:
    distance = task.log_uniform(generator, num_symbols + 1, max_distance)
    text = [*generator.choice([*SYMBOLS], size=num_symbols)]
    filler = [task.FILLER] * (distance - num_symbols - 1)
    words = [str(word) for word in [*text, *filler, MARKER, *text]]
    answers = [(distance + index, distance) for index in range(num_symbols)]
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("copy")
class Copy(task.Task):
  """Copies a string over filler."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_symbols": task.Option(8, 1, 10**4, "symbols to copy"),
    "max_distance": task.Option(
      48, 2, 10**8, "longest distance from a symbol to its copy"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(task.check_room_to_copy)
