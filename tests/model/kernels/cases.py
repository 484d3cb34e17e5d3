"""Arguments of attention, its definition, and its results and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl.conformance.equations import attention as equations
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
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
  "added": ("added",),  # What no encoding of the package has.
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
  if terms == "added":
    drawn["added"] = normal(heads, keys)
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
  factors, value = arguments_of_attention(**arrays)
  return dispatch.relative_attention(
    factors, value, dropout=dropout, implementation=form
  )


def arguments_of_attention(
  *,
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  reach: jax.Array,
  position_key: jax.Array | None = None,
  content_bias: jax.Array | None = None,
  position_bias: jax.Array | None = None,
  slopes: jax.Array | None = None,
  added: jax.Array | None = None,
) -> tuple[scores.ScoreFactors, jax.Array]:
  """The arrays as the model passes them."""
  biases = None
  if content_bias is not None:
    assert position_bias is not None
    biases = (content_bias, position_bias)
  terms = scores.DistanceTerms(position_key, biases, slopes, added)
  return scores.ScoreFactors(query, key, reach, terms), value


def values(form, arrays, dropout=None):
  """Attention's values alone."""
  return jax.jit(functools.partial(attend, form, dropout))(**arrays)


def value_and_gradients(form, arrays, dropout=None):
  """Attention's values, and gradients of all that has any."""
  rate, seeds = (0.0, None) if dropout is None else dropout
  return _run(
    form, rate, seeds, *_without_constants(arrays), output_weights(arrays)
  )


def defined_value_and_gradients(arrays, dropout=None):
  """Those of the equations, in float64."""
  kept, rate = None, 0.0
  if dropout is not None:
    rate = dropout.rate
    kept = equations.kept_weights(
      np.asarray(dropout.seeds),
      arrays["query"].shape[1],
      arrays["key"].shape[1],
      rate=rate,
    )
  gradients = equations.attention(
    {name: np.float64(array) for name, array in arrays.items()},
    np.float64(output_weights(arrays)),
    kept=kept,
    rate=rate,
  )
  return gradients.pop("values"), gradients


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


@functools.partial(jax.jit, static_argnames=("form", "rate"))
def _run(form, rate, seeds, arrays, fixed, weights):
  dropout = None
  if seeds is not None:
    dropout = dropout_lib.AttentionDropout(rate, seeds)

  def function(arrays):
    return attend(form, dropout, **arrays, **fixed)

  values, pull = jax.vjp(function, arrays)
  (gradients,) = pull(weights.astype(values.dtype))
  return values, gradients
