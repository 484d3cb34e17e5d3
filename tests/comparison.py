"""Compares floating-point results by the rounding of their type.

Processors add up the same terms in different orders, with different
instructions. The error of a sum is in proportion to its terms, not to the sum,
which is near 0 where terms cancel. So all numbers of an array have the same
bound, in proportion to the largest of them.
"""

import jax
import jax.numpy as jnp
import numpy as np

FLOAT32 = float(jnp.finfo(jnp.float32).eps)  # 1.2e-7, its rounding.


def assert_close(actual, expected, *, roundings: float) -> None:
  """Compares two trees, array by array.

  Args:
    actual: the tree to check. What is not floating-point has to be equal.
    expected: a tree of the same structure.
    roundings: the bound, relative to the largest number expected in an array,
      as a multiple of the rounding of the type of `actual`: 7.8e-3 for
      bfloat16, 1.2e-7 for everything else, since the model computes in float32
      even what is later stored as float64.
  """

  def compare(actual, expected):
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    if not jnp.issubdtype(actual.dtype, jnp.floating):
      np.testing.assert_array_equal(actual, expected)
      return
    is_half = actual.dtype == jnp.bfloat16
    rounding = float(jnp.finfo(jnp.bfloat16).eps) if is_half else FLOAT32
    actual = actual.astype(np.float64)
    expected = expected.astype(np.float64)
    bound = roundings * rounding * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)

  jax.tree.map(compare, actual, expected)


def difference(actual, expected) -> float:
  """The largest difference of two trees.

  The difference of two arrays is relative to the largest number expected.
  """

  def compare(actual, expected):
    actual = np.asarray(actual).astype(np.float64)
    expected = np.asarray(expected).astype(np.float64)
    largest = np.abs(actual - expected).max(initial=0)
    if largest == 0:
      return 0.0
    size = np.abs(expected).max()
    return float(largest / size) if size else np.inf

  return max(jax.tree.leaves(jax.tree.map(compare, actual, expected)))


def distance(one, other) -> float:
  """The largest difference of two trees, whatever the size of their numbers."""
  parts = jax.tree.map(lambda a, b: np.abs(a - b).max(), one, other)
  return max(map(float, jax.tree.leaves(parts)))
