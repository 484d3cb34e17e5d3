"""Compares floating-point results by the rounding of their type."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_close(actual, expected, *, roundings: float) -> None:
  """Compares every array of a tree, relative to the largest number in it.

  Processors add up the same terms in different orders, with different
  instructions. The error of a sum is in proportion to its terms and not to the
  sum, which may be near 0 where terms cancel. So the bound is the same for all
  numbers of an array, and in proportion to the largest.

  Args:
    actual: the tree to check. Numbers that are not floating-point have to be
      equal.
    expected: a tree of the same structure.
    roundings: the bound as a multiple of the rounding of the type of `actual`,
      8e-3 for bfloat16 and 1e-7 for float32. The model computes in float32
      whatever is later stored as float64, in JSON for example.
  """
  jax.tree.map(
    lambda actual, expected: _assert_array_close(actual, expected, roundings),
    actual,
    expected,
  )


def _assert_array_close(actual, expected, roundings: float) -> None:
  actual = np.asarray(actual)
  if not jnp.issubdtype(actual.dtype, jnp.floating):
    np.testing.assert_array_equal(actual, expected)
    return
  is_half = actual.dtype == jnp.bfloat16
  rounding = float(jnp.finfo(jnp.bfloat16 if is_half else jnp.float32).eps)
  actual = actual.astype(np.float64)
  expected = np.asarray(expected).astype(np.float64)
  bound = roundings * rounding * np.max(np.abs(expected), initial=0)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)
