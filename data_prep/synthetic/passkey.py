"""A passkey in real text (Mohtashami and Jaggi 2023).

    a . may the pass key is 7 3 9 4 if the value of . the pass key is 7 3 9 4

A few digits stand somewhere in prose, and are asked for much later. The prose
is the language reference that comes with Python (`pydoc_data`), or the text of
`--source`, with a filler in the place of all but the most frequent words.
The distance is that from a digit to its copy, the same for a whole document.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import prose
from transformer_xl.data_prep.synthetic import task

MARKER = ["the", "pass", "key", "is"]
NUM_WORDS = 200  # Most frequent words of the prose that are kept.


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_digits: int,
  max_distance: int,
  max_before: int,
  text: list[str],
) -> list[task.Document]:
  """Documents with `num_digits` digits, up to `max_distance` from their copies.

  The logarithm of the distance is distributed uniformly, and the number of
  words before the digits is too, up to `max_before`.

  Raises:
    UserError: the text is shorter than the distance, or than what is before.
  """
  asked = {"max_distance": max_distance, "max_before": max_before}
  for name, count in asked.items():
    if len(text) < count:
      raise errors.UserError(
        f"--source has {len(text)} words, fewer than --{name}={count}; give a "
        "longer text, or a lower number."
      )

  def passage(length: int) -> list[str]:
    start = generator.integers(len(text) - length + 1)
    return text[start : start + length]

  def document() -> task.Document:
    digits = [str(digit) for digit in generator.integers(10, size=num_digits)]
    key = [*MARKER, *digits]
    distance = task.log_uniform(generator, len(key), max_distance)
    before = passage(int(generator.integers(max_before + 1)))
    between = passage(distance - len(key))
    words = [*before, *key, *between, *key]
    first = len(words) - num_digits
    answers = [(first + index, distance) for index in range(num_digits)]
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


def check(*, num_digits: int, max_distance: int, max_before: int) -> None:
  """Raises a UserError if there is no room between the digits."""
  del max_before
  least = len(MARKER) + num_digits
  if max_distance < least:
    raise errors.UserError(
      f"--max_distance={max_distance} leaves no room for "
      f"--num_digits={num_digits}; make it at least {least}."
    )


@registry.tasks.register("passkey")
class Passkey(task.Task):
  """Hides digits in prose."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_digits": task.Option(4, 1, 100, "digits of the key"),
    "max_distance": task.Option(
      48, 2, 10**8, "longest distance from a digit to its copy"
    ),
    "max_before": task.Option(
      16, 0, 10**8, "most words before the digits of a document"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(check)
  has_prose = True
  prose = staticmethod(lambda text: prose.words(text, num_words=NUM_WORDS))
