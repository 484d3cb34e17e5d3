"""Recall among noise, one of MAD's tasks (Poli et al. 2024, section 3).

    k4 v1 k7 v5 n2 n9 k4 v1 n3 n3 k7 v5

A document is pairs of a key and its value. Keys come again, always with the
value that they had in the document, and every value but a key's first is an
answer. As published, there are 8 keys, 8 values and 16 words of noise, of which
two stand in the place of each fifth pair; documents have 128 words, which
`--max_distance=126` makes. The distance is that to the last time that the key
came, so more noise makes it longer (`--test_noise_percent`).
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

NUM_KEYS = 8
NUM_VALUES = 8
NUM_NOISE_WORDS = 16


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  max_distance: int,
  noise_percent: int,
) -> list[task.Document]:
  """Documents of `max_distance` + 2 words, less one if that is odd."""
  num_pairs = max_distance // 2 + 1

  def document() -> task.Document:
    values = generator.integers(NUM_VALUES, size=NUM_KEYS)
    is_noise = generator.integers(100, size=num_pairs) < noise_percent
    words: list[str] = []
    answers: list[tuple[int, int]] = []
    last_places: dict[int, int] = {}
    for noise in is_noise:
      if noise:
        pair = generator.integers(NUM_NOISE_WORDS, size=2)
        words += [f"n{word}" for word in pair]
        continue
      key = int(generator.integers(NUM_KEYS))
      place = len(words)
      words += [f"k{key}", f"v{values[key]}"]
      if key in last_places:
        answers.append((place + 1, place - last_places[key]))
      last_places[key] = place
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("noisy_recall")
class NoisyRecall(task.Task):
  """Asks for values of keys among words that mean nothing."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(
      62, 4, 10**8, "longest distance from a key to the same key"
    ),
    "noise_percent": task.Option(20, 0, 99, "pairs that are noise, in percent"),
  }
  write = staticmethod(write)
