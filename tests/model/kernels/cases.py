"""Arguments of attention, its definition, and its results and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import dispatch

FORMS = ("xla", "pallas")
ROUNDING = 1e-5  # Float32 against float64, relative to the largest number.
# What attention has besides queries, keys and values. An encoding has one of
# these, whatever else it changes.
TERMS = {
  "biased keys": ("position_key", "content_bias", "position_bias"),
  "keys": ("position_key",),
  "slopes": ("slopes",),
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
  terms: str = "biased keys",
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
  drawn = {
    "position_key": normal(keys, heads, width),
    "content_bias": normal(heads, width),
    "position_bias": normal(heads, width),
    "slopes": jnp.asarray(generator.uniform(0.01, 0.5, heads), jnp.float32),
  }
  return arrays | {name: drawn[name] for name in TERMS[terms]}


def dropout(
  arrays: dict[str, jax.Array], rate: float
) -> dropout_lib.AttentionDropout:
  """Seeds for the lanes and heads of such arrays."""
  shape = arrays["query"].shape[0], arrays["query"].shape[2]
  seeds = np.random.default_rng(2).integers(-(2**31), 2**31, size=shape)
  return dropout_lib.AttentionDropout(rate, jnp.asarray(seeds, jnp.int32))


def attend(
  form: str,
  dropout: dropout_lib.AttentionDropout | None,
  **arrays: jax.Array,
) -> jax.Array:
  """Attention, computed in one of the forms."""
  inputs = attention.Inputs(**arrays)
  return dispatch.relative_attention(inputs, dropout, form)


def values(form, arrays, dropout=None):
  """Attention's values alone."""
  return jax.jit(functools.partial(attend, form, dropout))(**arrays)


def define(
  kept: jax.Array | None,
  rate: float,
  *,
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  reach: jax.Array,
  position_key: jax.Array | None = None,
  content_bias: jax.Array | None = None,
  position_bias: jax.Array | None = None,
  slopes: jax.Array | None = None,
) -> jax.Array:
  """Attention by its definition, with a key for each pair of query and key.

  `kept` [B, H, T, K] is which weights dropout keeps; None for all.
  """
  segment_len, context_len = query.shape[1], key.shape[1]
  newest = np.arange(context_len - segment_len, context_len)
  distance = newest[:, None] - np.arange(context_len)[None]
  content, position = (
    query if bias is None else query + bias[None, None]
    for bias in (content_bias, position_bias)
  )
  scores = jnp.einsum("bthd,bkhd->bhtk", content, key)
  if position_key is not None:  # The last row is of distance 0.
    by_pair = position_key[context_len - 1 - np.maximum(distance, 0)]
    scores += jnp.einsum("bthd,tkhd->bhtk", position, by_pair)
  scores /= np.sqrt(query.shape[-1])
  if slopes is not None:
    scores -= slopes[None, :, None, None] * distance[None, None]
  visible = (distance[None] >= 0) & (distance[None] <= reach[:, :, None])
  scores = jnp.where(visible[:, None], scores, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1)
  if kept is not None:
    weights = jnp.where(kept, weights / (1 - rate), 0)
  return jnp.einsum("bhtk,bkhd->bthd", weights, value)


def value_and_gradients(form, arrays, dropout=None):
  """Attention's values, and gradients of all that has any."""
  function = functools.partial(attend, form, dropout)
  return _run(function, *_without_constants(arrays), output_weights(arrays))


def defined_value_and_gradients(arrays, dropout=None):
  """Those of the definition, in float64."""
  kept, rate = None, 0.0
  if dropout is not None:
    rate = dropout.rate
    row = jnp.arange(arrays["query"].shape[1], dtype=jnp.int32)
    column = jnp.arange(arrays["key"].shape[1], dtype=jnp.int32)
    kept = jax.jit(dropout_lib.kept, static_argnames="rate")(
      dropout.seeds[:, :, None, None],
      row[None, None, :, None],
      column[None, None, None],
      rate=rate,
    )
  with jax.enable_x64(True):
    wide = {
      name: array if name == "reach" else jnp.asarray(np.float64(array))
      for name, array in arrays.items()
    }
    weights = jnp.asarray(np.float64(output_weights(arrays)))
    defined = _define(kept, *_without_constants(wide), weights, rate=rate)
    return jax.tree.map(np.asarray, defined)


@functools.partial(jax.jit, static_argnames="rate")
def _define(kept, arrays, fixed, weights, *, rate):
  def function(arrays):
    return define(kept, rate, **arrays, **fixed)

  values, pull = jax.vjp(function, arrays)
  (gradients,) = pull(weights)
  return values, gradients


def assert_close(actual, expected, *, tolerance=ROUNDING):
  """Every array within a part of the largest number expected in it."""

  def check(actual, expected):
    actual, expected = np.float64(actual), np.float64(expected)
    bound = tolerance * max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)

  jax.tree.map(check, actual, expected)


def _without_constants(arrays):
  """The arrays that have gradients, and the others."""
  fixed = {name: arrays[name] for name in CONSTANTS if name in arrays}
  return {name: arrays[name] for name in arrays if name not in fixed}, fixed


def output_weights(arrays):
  """How much each of the values counts."""
  shape = arrays["query"].shape
  weights = np.random.default_rng(1).standard_normal(shape)
  return jnp.asarray(weights, jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _run(function, arrays, fixed, weights):
  values, pull = jax.vjp(lambda arrays: function(**arrays, **fixed), arrays)
  (gradients,) = pull(weights.astype(values.dtype))
  return values, gradients
