"""The search for a learning rate: until the best has a worse one on both sides.

Grids that end where the best rate is say nothing about what is beyond, and
recurrent models learn in a narrow window of rates alone (arXiv 2508.19029).
"""

import math
from collections.abc import Mapping

# Neighbours are so far apart, and so far the search goes beyond an end.
FACTOR = 3.0


def around(rate: float) -> tuple[float, ...]:
  """Rates to start with, where only the middle one is known."""
  return (_rounded(rate / FACTOR), rate, _rounded(rate * FACTOR))


def best(losses: Mapping[float, float]) -> float:
  """The rate of the lowest loss; of several, the lowest rate."""
  return min(sorted(losses), key=lambda rate: losses[rate])


def next_rate(losses: Mapping[float, float], most: int) -> float | None:
  """The rate to try after those that were tried; None after the last.

  Args:
    losses: by rate; infinite where training diverged.
    most: how many rates are tried at most.
  """
  if len(losses) >= most:
    return None
  chosen = best(losses)
  if chosen == min(losses):
    return _rounded(chosen / FACTOR)
  if chosen == max(losses):
    return _rounded(chosen * FACTOR)
  return None


def edge(losses: Mapping[float, float]) -> str:
  """Where the best rate has nothing beside it: "lowest", "highest" or ""."""
  if len(losses) < 2:
    return ""
  chosen = best(losses)
  if chosen == min(losses):
    return "lowest"
  return "highest" if chosen == max(losses) else ""


def diverges(losses: Mapping[float, float]) -> bool:
  """Whether there is no best rate, since training diverged with all."""
  return all(loss == math.inf for loss in losses.values())


def _rounded(rate: float) -> float:
  """The rate with two digits, since it names a folder."""
  return float(f"{rate:.2g}")
