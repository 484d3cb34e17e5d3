"""Classification of a nested expression: ListOps (Nangia and Bowman 2018).

    [MAX 2 9 [MIN 4 7 ] 0 ] = 9

An expression of the operations MAX, MIN, MED (the median, rounded down) and SM
(the sum modulo 10) on digits has one digit as its value, one of ten classes.
As published, an operation has 2 to 5 arguments and operations are nested at
most 10 deep; in the Long Range Arena (Tay et al. 2021) expressions have 500 to
2,000 symbols, which `--max_distance=2000` allows. Ours is how a length is
reached: its logarithm is drawn uniformly, and an operation divides what it has
among its arguments at random. The distance is the length of the expression.
"""

import statistics
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
  "[MAX": max,
  "[MIN": min,
  "[MED": lambda values: int(statistics.median(values)),
  "[SM": lambda values: sum(values) % 10,
}
END = "]"
EQUALS = "="
MAX_ARGUMENTS = 5
MAX_DEPTH = 10
_SHORTEST = 4  # An operation on two digits: [MAX 1 2 ]


def write(
  num_tokens: int, generator: np.random.Generator, *, max_distance: int
) -> list[task.Document]:
  """Documents with expressions of up to `max_distance` symbols with `=`."""

  def document() -> task.Document:
    length = task.log_uniform(generator, _SHORTEST, max_distance - 1)
    words, value = expression(generator, length, depth=1)
    words.append(EQUALS)
    answer = (len(words), len(words))
    return task.Document([*words, str(value)], [answer])

  return task.fill(num_tokens, document)


def expression(
  generator: np.random.Generator, length: int, *, depth: int
) -> tuple[list[str], int]:
  """An operation of at most `length` symbols at a depth, and its value."""
  most = min(MAX_ARGUMENTS, length - 2)
  count = int(generator.integers(2, most + 1))
  shares = 1 + generator.multinomial(
    length - 2 - count, generator.dirichlet(np.ones(count))
  )
  name = [*OPERATIONS][generator.integers(len(OPERATIONS))]
  words = [name]
  values = []
  room = 0  # An argument leaves to the next one what it has no use for.
  for share in shares:
    room += int(share)
    if room >= _SHORTEST and depth < MAX_DEPTH:
      inner, value = expression(generator, room, depth=depth + 1)
    else:
      value = int(generator.integers(10))
      inner = [str(value)]
    room -= len(inner)
    words += inner
    values.append(value)
  return [*words, END], OPERATIONS[name](values)


@registry.tasks.register("listops")
class ListOps(task.Task):
  """Asks for the value of a nested expression."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "max_distance": task.Option(
      48, 8, 10**8, "most symbols of an expression with its equals sign"
    ),
  }
  write = staticmethod(write)
  suite_updates = 1000
