"""Copying of some words among others, one of MAD's tasks (Poli et al. 2024).

    . d . . a . c . . f > d a c f

Symbols stand anywhere between fillers, the last of them before the marker, and
are to be repeated in their order. As published (section 3), with 14 symbols:
`--num_symbols=16 --max_distance=240`. Two things differ: a document is not
always the longest possible, since the marker's place has a uniform logarithm,
and a model reads each symbol of the copy after it was asked for, where MAD has
blanks. The distance is that from a symbol to its copy; unlike in `copy`, it is
another for each symbol.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

SYMBOLS = "abcdefghijklmn"
MARKER = ">"


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_symbols: int,
  max_distance: int,
) -> list[task.Document]:
  """Documents that copy `num_symbols` symbols over up to `max_distance` words.

  The logarithm of the marker's place is distributed uniformly.
  """

  def document() -> task.Document:
    length = task.log_uniform(generator, num_symbols + 1, max_distance) - 1
    # The last symbol is the last word, the others are anywhere before it.
    drawn = generator.choice(length - 1, size=num_symbols - 1, replace=False)
    places = [*sorted(drawn.tolist()), length - 1]
    symbols = [
      str(symbol) for symbol in generator.choice([*SYMBOLS], num_symbols)
    ]
    words = [task.FILLER] * length
    for place, symbol in zip(places, symbols, strict=True):
      words[place] = symbol
    words += [MARKER, *symbols]
    answers = []
    for number, place in enumerate(places):
      index = length + 1 + number
      answers.append((index, index - place))
    return task.Document(words, answers)

  return task.fill(num_tokens, document)


@registry.tasks.register("selective_copying")
class SelectiveCopying(task.Task):
  """Copies symbols that stand between fillers."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_symbols": task.Option(8, 1, 10**4, "symbols to copy"),
    "max_distance": task.Option(
      48, 2, 10**8, "longest distance from a symbol to its copy"
    ),
  }
  write = staticmethod(write)
  check = staticmethod(task.check_room_to_copy)
