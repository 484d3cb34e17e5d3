"""Classification of real text: from which part of it is an excerpt?

    the value of the . object is a . ? part3

A text is cut into eight parts of equal length: the language reference that
comes with Python (`pydoc_data`), whose topics are in alphabetical order, or the
text of `--source`, for example several books one after another. All but its
1,000 most frequent words are a filler. The first eight tenths of each part are
in training documents, the ninth in those for validation and the last in those
of the test. No excerpt is in two parts. The distance is its length.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import prose
from transformer_xl.data_prep.synthetic import task

NUM_PARTS = 8
NUM_WORDS = 1000  # Most frequent words of the text that are kept.
QUESTION = "?"
# Where the stretch of a split starts and stops in a part.
STRETCHES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}
_SHORTEST = 8
_MOST_TRIES = 1000  # For an excerpt that is in one part alone.


def parts(text: list[str]) -> list[list[str]]:
  """The parts of a text, each as many words."""
  length = len(text) // NUM_PARTS
  return [text[n * length : (n + 1) * length] for n in range(NUM_PARTS)]


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  max_distance: int,
  text: list[str],
  split: str,
) -> list[task.Document]:
  """Documents with an excerpt each, of up to `max_distance` words with `?`.

  The logarithm of its length is distributed uniformly.

  Raises:
    UserError: the text is too short, or its parts say the same.
  """
  all_parts = parts(text)
  joined = [f" {' '.join(part)} " for part in all_parts]
  length = len(all_parts[0])
  start, stop = (round(length * share) for share in STRETCHES[split])
  if stop - start < max_distance:
    raise errors.UserError(
      f"--source has {len(text)} words, of which {stop - start} of each part "
      f"are for {split}, fewer than --max_distance={max_distance}; give a "
      "longer text, or less distance."
    )

  def document() -> task.Document:
    for _ in range(_MOST_TRIES):
      number = int(generator.integers(NUM_PARTS))
      count = task.log_uniform(generator, _SHORTEST, max_distance - 1)
      first = int(generator.integers(start, stop - count + 1))
      words = all_parts[number][first : first + count]
      excerpt = f" {' '.join(words)} "
      if sum(excerpt in part for part in joined) == 1:
        distance = count + 1
        answer = [(distance, distance)]
        return task.Document([*words, QUESTION, f"part{number + 1}"], answer)
    raise errors.UserError(
      f"--source says everything several times: of {_MOST_TRIES} excerpts none "
      "was in one part alone; give another text."
    )

  return task.fill(num_tokens, document)


@registry.tasks.register("excerpt")
class Excerpt(task.Task):
  """Asks which part of a text an excerpt is from."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(
      48, 16, 10**8, "most words of an excerpt with its question mark"
    ),
  }
  write = staticmethod(write)
  has_prose = True
  knows_split = True
  prose = staticmethod(lambda text: prose.words(text, num_words=NUM_WORDS))
  suite_updates = 1000
