"""What several seeds show together: their median, and where they lie.

A curve that jumps has no mean: where a model looks everything up with one seed
and guesses with another, no seed is near the mean of both. So the median
counts, with the interval from the least to the greatest.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class OverSeeds(NamedTuple):
  """A measurement with each seed, in the order of the seeds."""

  by_seed: tuple[float, ...]

  @property
  def median(self) -> float:
    return statistics.median(self.by_seed)

  @property
  def low(self) -> float:
    return min(self.by_seed)

  @property
  def high(self) -> float:
    return max(self.by_seed)


def of(by_seed: Sequence[float]) -> OverSeeds:
  """The measurement of some seeds, at least one."""
  return OverSeeds(tuple(map(float, by_seed)))


def overlap(one: OverSeeds, other: OverSeeds) -> bool:
  """Whether the intervals of two have a value in common.

  Then the seeds do not tell them apart.
  """
  return one.low <= other.high and other.low <= one.high


def ranks(
  measured: Sequence[OverSeeds], *, is_higher_better: bool
) -> list[str]:
  """The places by the median, from 1, with what the seeds do not tell apart.

  Each is compared with the one above it, as in "3, not told apart from 2", if
  both have several seeds.
  """

  def place(index: int) -> float:
    median = measured[index].median
    return -median if is_higher_better else median

  order = sorted(range(len(measured)), key=place)
  words = [""] * len(measured)
  for rank, index in enumerate(order, start=1):
    words[index] = str(rank)
    if rank == 1:
      continue
    both = (measured[index], measured[order[rank - 2]])
    have_seeds = all(len(each.by_seed) > 1 for each in both)
    if have_seeds and overlap(*both):
      words[index] += f", not told apart from {rank - 1}"
  return words
