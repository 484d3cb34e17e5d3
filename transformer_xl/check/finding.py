"""One comparison of a device with what it should have computed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from transformer_xl import errors
from transformer_xl.processes import others


class Finding(NamedTuple):
  """The error of one case.

  Attributes:
    part: what was checked, such as "attention".
    case: the form, format, sizes and mesh that it was checked with.
    error: the largest difference, in roundings of the number format. What has
      to be equal has the number of differing elements instead.
    limit: the largest error of a device that computes correctly; infinite
      where nothing could be compared.
    worst: the array with the largest error; "" where there is only one. If the
      case failed, the message.
  """

  part: str
  case: str
  error: float
  limit: float
  worst: str = ""

  @property
  def passed(self) -> bool:
    """Whether the error is within its limit; NaN is not."""
    return self.error <= self.limit

  @property
  def is_compared(self) -> bool:
    """Whether there is a limit."""
    return self.limit < math.inf

  def __str__(self) -> str:
    if not self.is_compared:
      return f"{self.part}: {self.case}"
    mark = "ok" if self.passed else "WRONG"
    worst = f" in {self.worst}" if self.worst else ""
    return (
      f"{mark:5} {self.part}: {self.case}: {self.error:.3g} of "
      f"{self.limit:g}{worst}"
    )


def compare(
  actual: Mapping[str, np.ndarray],
  expected: Mapping[str, np.ndarray],
  *,
  part: str,
  case: str,
  limit: float,
  dtype: str,
) -> Finding:
  """Compares named arrays with those expected, in float64.

  The error of an array is relative to the largest number expected in it: that
  of a sum grows with its terms, which may cancel. Its unit is the distance from
  1 to the next number of `dtype`.
  """
  unit = float(jnp.finfo(dtype).eps)
  errors = {}
  for name, array in expected.items():
    found = np.asarray(actual[name]).astype(np.float64)
    size = np.abs(array).max()
    errors[name] = float(np.abs(found - array).max() / size / unit)
  worst = max(errors, key=lambda name: _size(errors[name]))
  return Finding(part, case, errors[worst], limit, worst)


def attempt(
  part: str, case: str, check: Callable[[], list[Finding]]
) -> list[Finding]:
  """What a check finds; one finding without bounds if it fails.

  A kernel that a device cannot compile must not hide what the others compute.
  """
  try:
    with others.on_failure():
      return check()
  except errors.LostProcessError:
    raise
  except Exception as error:  # Compilers and drivers have no common type.
    logging.exception("%s: %s failed.", part, case)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return [Finding(part, case, math.inf, 0.0, text[:300])]


def largest_of_processes(findings: Sequence[Finding]) -> list[Finding]:
  """The findings with the largest error that any process has found.

  Every process has compared its own copy of the same results. A wrong one
  counts before all right ones, whose limit may be another.
  """
  if jax.process_count() == 1:
    return list(findings)
  mine = [(found.error, found.limit) for found in findings]
  everyone = multihost_utils.process_allgather(np.array(mine, np.float64))
  by_finding = np.swapaxes(everyone, 0, 1).tolist()

  def worst(found: Finding, pairs: list[list[float]]) -> Finding:
    seen = [found._replace(error=error, limit=limit) for error, limit in pairs]
    return max(seen, key=lambda one: (not one.passed, _size(one.error)))

  return [
    worst(found, pairs)
    for found, pairs in zip(findings, by_finding, strict=True)
  ]


def _size(error: float) -> tuple[bool, float]:
  """How large an error is; NaN is larger than any number."""
  return math.isnan(error), error


def log(findings: Sequence[Finding]) -> None:
  """Logs a line for each part, and one for each finding that is wrong.

  What was not compared has a line, too.
  """
  for found in findings:
    if not found.is_compared:
      logging.warning("%s", found)
  compared = [found for found in findings if found.is_compared]
  for part in dict.fromkeys(found.part for found in compared):
    group = [found for found in compared if found.part == part]
    share = max(
      (found.error / found.limit if found.limit else found.error)
      for found in group
    )
    wrong = [found for found in group if not found.passed]
    logging.info(
      "%s: %d cases, %d wrong; the largest error is %.2f of its limit.",
      part,
      len(group),
      len(wrong),
      share,
    )
    for found in wrong:
      logging.error("%s", found)
