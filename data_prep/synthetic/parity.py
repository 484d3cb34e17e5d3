"""Parity: whether the number of ones so far is even or odd.

    1 0 0 1 1 ? odd

The simplest task of state tracking: every bit can change the answer, so nothing
can be looked up. The distance is the number of bits, that is, from the first
bit to the question.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

ANSWERS = ("even", "odd")
QUESTION = "?"


def write(
  num_tokens: int, generator: np.random.Generator, *, max_distance: int
) -> list[task.Document]:
  """Documents of up to `max_distance` bits, with a uniform logarithm."""

  def document() -> task.Document:
    length = task.log_uniform(generator, 1, max_distance)
    bits = generator.integers(2, size=length)
    words = [*map(str, bits), QUESTION, ANSWERS[bits.sum() % 2]]
    return task.Document(words, [(length + 1, length)])

  return task.fill(num_tokens, document)


@registry.tasks.register("parity")
class Parity(task.Task):
  """Asks whether the number of ones is even."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(30, 2, 10**8, "most bits of a document"),
  }
  write = staticmethod(write)
  suite_updates = 400
