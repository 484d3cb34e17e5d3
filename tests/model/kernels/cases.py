"""Arguments of attention, and its results and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import dispatch

ROUNDING = 1e-5  # Float32 sums in another order, relative to the largest.
# What attention has besides queries, keys and values, by encoding. To the
# kernels, rope and the absolute encodings are as none.
TERMS = {
  "relative": ("position_key", "content_bias", "position_bias"),
  "shaw": ("position_key",),
  "alibi": ("slopes",),
  "none": (),
}
CONSTANTS = ("reach", "slopes")


def arguments(
  lanes: int,
  queries: int,
  remembered: int,
  heads: int,
  width: int,
  *,
  encoding: str = "relative",
  dtype: Any = jnp.float32,
  seed: int = 0,
) -> dict[str, jax.Array]:
  """Random arrays and random reaches, at least one of them unlimited."""
  generator = np.random.default_rng(seed)
  keys = queries + remembered

  def normal(*shape):
    return jnp.asarray(generator.standard_normal(shape), dtype)

  reach = generator.integers(0, keys + 1, size=(lanes, queries))
  reach[0, -1] = keys
  arrays = {
    "query": normal(lanes, queries, heads, width),
    "key": normal(lanes, keys, heads, width),
    "value": normal(lanes, keys, heads, width),
    "reach": jnp.asarray(reach, jnp.int32),
  }
  terms = {
    "position_key": normal(keys, heads, width),
    "content_bias": normal(heads, width),
    "position_bias": normal(heads, width),
    "slopes": jnp.asarray(generator.uniform(0.01, 0.5, heads), jnp.float32),
  }
  return arrays | {name: terms[name] for name in TERMS[encoding]}


def dispatched(
  implementation: str,
  dropout: dropout_lib.AttentionDropout | None,
  **arrays: jax.Array,
) -> jax.Array:
  """Attention, computed in one of the ways of `dispatch`."""
  inputs = attention.Inputs(**arrays)
  return dispatch.relative_attention(inputs, dropout, implementation)


def dropout(
  arrays: dict[str, jax.Array], rate: float
) -> dropout_lib.AttentionDropout:
  """Seeds for the lanes and heads of such arrays."""
  shape = arrays["query"].shape[0], arrays["query"].shape[2]
  seeds = np.random.default_rng(2).integers(-(2**31), 2**31, size=shape)
  return dropout_lib.AttentionDropout(rate, jnp.asarray(seeds, jnp.int32))


def widened(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """The same numbers in float32."""
  return {
    name: array if name in CONSTANTS else array.astype(jnp.float32)
    for name, array in arrays.items()
  }


def value_and_gradients(function, arrays, seed=1):
  """Attention's values, and gradients of all that has any.

  Args:
    function: of the arrays; the same object for the same computation, since
      what is compiled is kept with it.
    arrays: as `arguments` makes them.
    seed: of the values' weights.
  """
  arrays = dict(arrays)
  fixed = {name: arrays.pop(name) for name in CONSTANTS if name in arrays}
  shape = arrays["query"].shape
  weights = np.random.default_rng(seed).standard_normal(shape)
  return _run(function, arrays, fixed, jnp.asarray(weights, jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def _run(function, arrays, fixed, weights):
  values, pull = jax.vjp(lambda arrays: function(**arrays, **fixed), arrays)
  return values, pull(weights.astype(values.dtype))


def assert_close(actual, expected, *, tolerance=ROUNDING):
  """Every array within a part of the largest number expected in it."""

  def check(actual, expected):
    actual, expected = np.float32(actual), np.float32(expected)
    bound = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)

  jax.tree.map(check, actual, expected)
