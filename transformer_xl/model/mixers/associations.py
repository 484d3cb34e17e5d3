"""Parts of mixers whose heads associate keys with values.

Queries, keys and values go through a short convolution, the mixer's own state
answers the queries, and a gate scales the answers. `delta` and `titans` read so
(docs/specification.md, section 26).

Shapes: B lanes, T tokens, H heads, Dk and Dv widths of keys and values, J rows
that the convolution remembers, W = H (2 Dk + Dv) its channels.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import norm as norm_lib
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import short_convolution

# Added to squared lengths, so that a row of zeros stays zero.
_EPSILON = 1e-6


class Heads(NamedTuple):
  """Queries, keys and values of the heads in a segment, in float32.

  Attributes:
    query: rows of length 1.
    key: rows of length 1, so that a write can replace what it read.
    value: what keys are associated with.
    rows: those before the convolution that the next segment needs.
  """

  query: jt.Float[shapes.Array, "B T H Dk"]
  key: jt.Float[shapes.Array, "B T H Dk"]
  value: jt.Float[shapes.Array, "B T H Dv"]
  rows: jt.Float[shapes.Array, "B J W"]


def heads(
  layer: mixer.Mixer,
  rows: shapes.Hidden,
  before: jt.Float[shapes.Array, "B J W"],
  shared: mixer.Shared,
  *,
  key_dim: int,
  value_dim: int,
) -> Heads:
  """Projects a segment to queries, keys and values, and convolves them.

  Args:
    layer: owns the parameters `query`, `key`, `value` and `convolution`.
    rows: the layer's input, normalised.
    before: what the state of the layer has as `Heads.rows`.
    shared: what all layers know of the segment.
    key_dim: Dk.
    value_dim: Dv.
  """
  joined = jnp.concatenate(
    [
      _project(layer, "query", rows, key_dim, shared),
      _project(layer, "key", rows, key_dim, shared),
      _project(layer, "value", rows, value_dim, shared),
    ],
    axis=2,
  )
  taps = layer.param(
    "convolution",
    short_convolution.draw_taps,
    (short_convolution.LENGTH, joined.shape[2]),
    jnp.float32,
  )
  convolved, latest = short_convolution.convolve(
    joined, before, taps.astype(layer.config.dtype), shared
  )
  of_keys = layer.config.num_heads * key_dim
  query, key, value = jnp.split(convolved, (of_keys, 2 * of_keys), axis=2)
  return Heads(
    _unit(_by_head(layer, query)),
    _unit(_by_head(layer, key)),
    _by_head(layer, value),
    latest,
  )


def gated_output(
  layer: mixer.Mixer,
  answers: jt.Float[jax.Array, "B T H Dv"],
  rows: shapes.Hidden,
  shared: mixer.Shared,
) -> shapes.Hidden:
  """Turns the answers of all heads into a term of the residual stream.

  Args:
    layer: owns the parameters `value_scale`, `gate` and `output`.
    answers: of the state to the queries, in float32.
    rows: the layer's input, normalised.
    shared: what all layers know of the segment.
  """
  config = layer.config
  value_dim = answers.shape[3]
  ones = nn.initializers.ones
  scale = layer.param("value_scale", ones, (value_dim,), jnp.float32)
  normed = norm_lib.rms_norm(answers, scale, config.layer_norm_epsilon)
  gate = _by_head(layer, _project(layer, "gate", rows, value_dim, shared))
  return parameters.project_output(
    layer,
    normed.astype(config.dtype) * nn.silu(gate),
    dropout_lanes=shared.dropout_lanes,
  )


def _project(
  layer: mixer.Mixer,
  name: str,
  rows: shapes.Hidden,
  head_dim: int,
  shared: mixer.Shared,
) -> jax.Array:
  """The rows of all heads side by side, [B, T, H * head_dim]."""
  config = layer.config
  kernel = layer.matrix(
    name,
    (config.model_dim, config.num_heads * head_dim),
    split="columns",
    dropout_lanes=shared.dropout_lanes,
  )
  return dense.times(rows, kernel)


def _by_head(layer: mixer.Mixer, rows: jax.Array) -> jax.Array:
  """From [B, T, H * size] to [B, T, H, size]."""
  return rows.reshape(*rows.shape[:2], layer.config.num_heads, -1)


def _unit(rows: jax.Array) -> jax.Array:
  """Rows divided by their length."""
  squares = jnp.sum(jnp.square(rows), axis=-1, keepdims=True)
  return rows * jax.lax.rsqrt(squares + _EPSILON)
