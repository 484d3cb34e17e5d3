"""Multi-query associative recall, the MQAR of Arora et al. 2023, section 4.

    k4 v9 k1 v0 k7 v3 k1 v0 . . k7 v3 k4 v9 . .

A document starts with pairs of a key and a value. Then each key comes once
more, and its value has to follow. The gaps have a power law, so that most
queries come soon and a few come late. Unlike in `recall`, a key and its value
are two words, a query looks like a pair, and all pairs wait at once. Documents
have from one pair to the number that is asked for, since a model finds out what
to do where there are few, as in the paper's training data.

The paper has a vocabulary of 8,192 words and a random word in every gap, and
tests with more pairs than in training. Scaled down:

    --num_words=4096 --random_filler=1 --min_pairs=4 --num_pairs=16
    --max_distance=126 --test_num_pairs=64 --test_max_distance=510
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

EXPONENT = 0.01  # The paper's; a gap g has a probability as g**(EXPONENT - 1).


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_words: int,
  min_pairs: int,
  num_pairs: int,
  max_distance: int,
  random_filler: int,
) -> list[task.Document]:
  """Documents of up to `num_pairs` pairs, each asked for once."""

  def document() -> task.Document:
    count = int(generator.integers(min_pairs, num_pairs + 1))
    # Queries take one of these slots of two words each.
    longest = max_distance * count // num_pairs
    num_slots = max(count, (longest - 2 * count) // 2 + 1)
    probabilities = np.arange(1, num_slots + 1) ** (EXPONENT - 1)
    probabilities /= probabilities.sum()
    keys = generator.choice(num_words, size=count, replace=False)
    values = generator.choice(num_words, size=count)
    slots = generator.choice(
      num_slots, size=count, replace=False, p=probabilities
    )
    words = []
    for key, value in zip(keys, values, strict=True):
      words += [f"k{key}", f"v{value}"]
    num_fillers = 2 * num_slots
    if random_filler:
      # Any word but the document's keys: one of those would be a query.
      others = np.setdiff1d(np.arange(2 * num_words), keys)
      words += [
        f"k{word}" if word < num_words else f"v{word - num_words}"
        for word in generator.choice(others, size=num_fillers)
      ]
    else:
      words += [task.FILLER] * num_fillers
    distances = {}
    for pair, slot in enumerate(slots):
      query = 2 * count + 2 * int(slot)
      words[query : query + 2] = words[2 * pair : 2 * pair + 2]
      distances[query + 1] = query - 2 * pair
    return task.Document(words, sorted(distances.items()))

  return task.fill(num_tokens, document)


def check(
  *,
  num_words: int,
  min_pairs: int,
  num_pairs: int,
  max_distance: int,
  random_filler: int,
) -> None:
  """Raises a UserError for more pairs than keys, or than there is room for."""
  del random_filler
  if not min_pairs <= num_pairs <= num_words:
    raise errors.UserError(
      f"--min_pairs={min_pairs}, --num_pairs={num_pairs} and "
      f"--num_words={num_words} must not become smaller in this order: no key "
      "is in two pairs of a document."
    )
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
    "num_words": task.Option(16, 1, 10**5, "number of keys, and of values"),
    "min_pairs": task.Option(1, 1, 10**4, "least pairs in a document"),
    "num_pairs": task.Option(6, 1, 10**4, "most pairs in a document"),
    "max_distance": task.Option(
      30, 2, 10**8, "longest distance from a pair to its query"
    ),
    "random_filler": task.Option(
      0, 0, 1, "1 for random keys and values in the gaps, as published"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(check)
  suite_updates = 800
