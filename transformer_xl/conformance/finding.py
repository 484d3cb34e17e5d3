"""Comparisons of outputs, and where they fail.

Processors add up the same terms in different orders. The error of a sum is in
proportion to its terms, not to the sum, which is near 0 where terms cancel. So
all numbers of an array have the same bound, in proportion to the largest.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import shapes
from transformer_xl.conformance.implementation import Array

FLOAT32 = float(jnp.finfo(jnp.float32).eps)  # 1.2e-7, its rounding.
ROUNDINGS = 100  # Two ways of computing the same may differ by so many.
CLOSE = ROUNDINGS * FLOAT32
SEEN = 30 * FLOAT32  # What one program makes of a change is above this.
NOTHING = 10 * FLOAT32  # What is 0 but for rounding, beside the largest number.
FAR = 30 * CLOSE  # What differs by more has another cause than rounding.


class Finding(NamedTuple):
  """One comparison.

  Attributes:
    is_right: whether it came out as it should.
    reason: what is wrong if not, in words.
    case: where the largest difference is, or the first one that is too large.
    difference: the largest, in proportion to the largest number expected.
    tolerance: what the difference may be, or for arrays that should differ what
      it should be at least.
  """

  is_right: bool
  reason: str
  case: str
  difference: float
  tolerance: float


def close(
  actual: Array,
  expected: Array,
  case: str,
  *,
  reason: str = "the outputs differ",
  tolerance: float = CLOSE,
  first: tuple[int, int] = (0, 0),
) -> Finding:
  """Whether outputs [B, T, ...] are equal but for rounding.

  Args:
    actual: the outputs to check.
    expected: what they should be.
    case: what was done, for people.
    reason: what is wrong if they are not equal.
    tolerance: in proportion to the largest number expected.
    first: the lane and the position in the text of the first output.
  """
  differences = _relative(actual, expected)
  is_right = differences.max(initial=0) <= tolerance
  case = f"{case}: {_place(differences, tolerance, first)}"
  difference = float(differences.max(initial=0))
  return Finding(bool(is_right), reason, case, difference, tolerance)


def same(
  actual: Array,
  expected: Array,
  case: str,
  *,
  reason: str = "the outputs differ",
  first: tuple[int, int] = (0, 0),
) -> Finding:
  """Whether outputs [B, T, ...] are equal to the bit."""
  return close(
    actual, expected, case, reason=reason, tolerance=0.0, first=first
  )


def differ(
  one: Array,
  other: Array,
  case: str,
  *,
  reason: str,
  least: float = FAR,
) -> Finding:
  """Whether arrays differ somewhere by far more than rounding."""
  difference = float(_relative(one, other).max(initial=0))
  return Finding(difference > least, reason, case, difference, least)


def trees_close(
  actual: shapes.PyTree,
  expected: shapes.PyTree,
  case: str,
  *,
  reason: str,
  tolerance: float = CLOSE,
) -> Finding:
  """Whether two trees are equal but for rounding, array by array.

  An array in bfloat16 has the tolerance of its own rounding. An array that is 0
  but for rounding, beside the others, is 0: so is the gradient of a bias that
  is added to all keys.
  """
  worst = (-1.0, "")
  wrong: list[str] = []
  leaves = jax.tree.leaves_with_path(expected)
  others = jax.tree.leaves(actual)
  nothing = NOTHING * max((_size(leaf) for _, leaf in leaves), default=0.0)
  for (path, leaf), other in zip(leaves, others, strict=True):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    difference = float(_relative(other, leaf).max(initial=0))
    if _size(leaf) <= nothing and _size(other) <= nothing:
      difference = 0.0
    if leaf.dtype == jnp.bfloat16:
      difference *= FLOAT32 / float(jnp.finfo(jnp.bfloat16).eps)
    worst = max(worst, (difference, name))
    if difference > tolerance:
      wrong.append(name)
  largest, where = worst
  place = wrong[0] if wrong else where
  return Finding(not wrong, reason, f"{case}: {place}", largest, tolerance)


def holds(is_right: bool, case: str, *, reason: str) -> Finding:
  """A condition without numbers."""
  return Finding(bool(is_right), reason, case, math.nan, math.nan)


def finite(outputs: Array, case: str) -> Finding:
  """Whether outputs [B, T, ...] have neither a NaN nor an infinity."""
  flat = np.asarray(outputs).astype(np.float64)
  is_finite = np.isfinite(flat.reshape(*flat.shape[:2], -1)).all(axis=-1)
  if not is_finite.all():
    position, lane = np.argwhere(~is_finite.T)[0]
    case = f"{case}: lane {lane}, position {position}"
  return holds(bool(is_finite.all()), case, reason="an output is not finite")


def eased(one: Finding, factor: float) -> Finding:
  """A finding with so many times the tolerance for rounding, up to `FAR`.

  What has to be the same, or to differ, is judged as before.
  """
  is_bounded = one.is_right == (one.difference <= one.tolerance)
  if not is_bounded:
    return one
  tolerance = max(one.tolerance, min(factor * one.tolerance, FAR))
  is_right = one.difference <= tolerance
  return one._replace(is_right=is_right, tolerance=tolerance)


def _size(array: Array) -> float:
  """The largest number, without its sign."""
  return float(np.abs(np.asarray(array).astype(np.float64)).max(initial=0))


def _relative(actual: Array, expected: Array) -> np.ndarray:
  """Differences in proportion to the largest number that is expected."""
  actual = np.asarray(actual).astype(np.float64)
  expected = np.asarray(expected).astype(np.float64)
  if actual.shape != expected.shape:
    return np.full((1,) * expected.ndim, np.inf)
  size = np.abs(expected).max(initial=0)
  with np.errstate(invalid="ignore", divide="ignore"):
    result = np.abs(actual - expected)
    result = np.where(result == 0, 0.0, result / size)
  return np.where(np.isnan(result), np.inf, result)


def _place(
  differences: np.ndarray, tolerance: float, first: tuple[int, int]
) -> str:
  """The first position with a difference that is too large, else the worst."""
  lane, position = first
  axes = tuple(range(2, differences.ndim))
  by_token = differences.max(axis=axes, initial=0)
  wrong = np.greater(by_token.T, tolerance)
  if not wrong.size:
    return "nothing to compare"
  flat = wrong.argmax() if wrong.any() else by_token.T.argmax()
  token, row = np.unravel_index(flat, wrong.shape)
  return f"lane {lane + row}, position {position + token}"
