"""Facts that are not in the text, one of MAD's tasks (Poli et al. 2024).

    k17 ? v93 k5 ? v12

Each key has one value, the same in all documents of all splits, so a model has
to keep the facts in its parameters. As published (section 3), there are 127
facts, and a document asks for 16. Two things differ: no key is asked for twice
in a document, and a model reads each answer after it was asked for. The
distance is that from a key to its value. It is 2 as published; with a larger
`--max_distance`, whose logarithm is uniform, fillers stand behind the key.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

NUM_FACTS = 127
QUESTION = "?"
# The facts are the same whatever the seed of the text.
_SEED_OF_FACTS = 0


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_questions: int,
  max_distance: int,
) -> list[task.Document]:
  """Documents that ask for `num_questions` facts each."""
  values = np.random.default_rng(_SEED_OF_FACTS).permutation(NUM_FACTS)

  def document() -> task.Document:
    words: list[str] = []
    answers = []
    keys = generator.choice(NUM_FACTS, size=num_questions, replace=False)
    for key in keys:
      distance = task.log_uniform(generator, 2, max_distance)
      filler = [task.FILLER] * (distance - 2)
      words += [f"k{key}", *filler, QUESTION, f"v{values[key]}"]
      answers.append((len(words) - 1, distance))
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("memorization")
class Memorization(task.Task):
  """Asks for values that are the same in all documents."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_questions": task.Option(16, 1, NUM_FACTS, "questions of a document"),
    "max_distance": task.Option(
      2, 2, 10**8, "longest distance from a key to its value"
    ),
  }
  write = staticmethod(write)
