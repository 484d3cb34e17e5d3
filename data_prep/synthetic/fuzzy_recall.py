"""Recall of several words by several words, from MAD (Poli et al. 2024).

    k4 k1 v0 k2 v5 v3 k4 v2 v6 v1 k4 k1 v0

A key is one to three different words, and so is a value. A key that comes again
has the value that it had in the document, and the words of this value are
answers. The key `k4` is another than `k4 k1`. As published (section 3), there
are 7 words for keys and 8 for values, and keys of the splits for validation and
test all have three words, of which few come twice; therefore a document ends
with a key that it already had. Published documents have 128 words. The distance
is that from a value's word to the same word of the last time.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

NUM_KEY_WORDS = 7
NUM_VALUE_WORDS = 8


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  max_distance: int,
  motif_len: int,
  split: str,
) -> list[task.Document]:
  """Documents whose keys and values have up to `motif_len` words.

  The last pair of a document starts within its first `max_distance` + 1 words.
  """
  shortest_key = 1 if split == "train" else motif_len

  def draw_words(letter: str, num_words: int, shortest: int) -> tuple[str, ...]:
    size = int(generator.integers(shortest, motif_len + 1))
    drawn = generator.choice(num_words, size=size, replace=False)
    return tuple(f"{letter}{word}" for word in drawn)

  def document() -> task.Document:
    words: list[str] = []
    answers: list[tuple[int, int]] = []
    values: dict[tuple[str, ...], tuple[str, ...]] = {}
    # Where the value of each key began last.
    last_places: dict[tuple[str, ...], int] = {}

    def add(key: tuple[str, ...]) -> None:
      value = values[key]
      place = len(words) + len(key)
      words.extend([*key, *value])
      if key in last_places:
        distance = place - last_places[key]
        answers.extend((place + i, distance) for i in range(len(value)))
      last_places[key] = place

    while True:
      key = draw_words("k", NUM_KEY_WORDS, shortest_key)
      value = values.get(key) or draw_words("v", NUM_VALUE_WORDS, 1)
      if len(words) + len(key) + len(value) > max_distance:
        break
      values[key] = value
      add(key)
    known = [*values]
    add(known[generator.integers(len(known))])
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


def check(*, max_distance: int, motif_len: int) -> None:
  """Raises a UserError if a pair is longer than the distance."""
  least = 2 * motif_len
  if max_distance < least:
    raise errors.UserError(
      f"--max_distance={max_distance} leaves no room for a key and a value of "
      f"--motif_len={motif_len}; make it at least {least}."
    )


@registry.tasks.register("fuzzy_recall")
class FuzzyRecall(task.Task):
  """Asks for values of several words by keys of several words."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(
      62, 2, 10**8, "longest distance from a value to the same value"
    ),
    "motif_len": task.Option(
      3, 1, NUM_KEY_WORDS, "most words of a key, and of a value"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(check)
  knows_split = True
  suite_updates = 1000
