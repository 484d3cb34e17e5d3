"""Dropout of attention weights, as a function of their position."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes

# Odd, so that distinct indices stay distinct; 2^32 divided by the golden ratio.
_STRIDE = 0x9E3779B9 - (1 << 32)


class Dropout(NamedTuple):
  """Dropout of attention weights.

  Whether a weight is dropped is a function of its position, so every
  implementation drops the same weights on any mesh, and none keeps a mask.
  """

  rate: float
  seeds: jt.Int[shapes.Array, "B H"]  # Random bits.


def drop(
  weights: jt.Float[shapes.Array, "B H T K"],
  dropout: Dropout | None,
  *,
  first_query: int,
) -> jt.Float[shapes.Array, "B H T K"]:
  """Zeros some weights and scales up the others to compensate."""
  if dropout is None:
    return weights
  queries, keys = weights.shape[2:]
  query = jnp.arange(queries, dtype=jnp.int32) + first_query
  keeps = kept(
    dropout.seeds[:, :, None, None],
    query[None, None, :, None],
    jnp.arange(keys, dtype=jnp.int32)[None, None, None],
    rate=dropout.rate,
  )
  return jnp.where(keeps, weights / (1 - dropout.rate), 0)


def kept(
  seed: jax.Array, query: jax.Array, key: jax.Array, *, rate: float
) -> jax.Array:
  """Whether dropout keeps the weight between a query and a key.

  A hash of three int32 numbers, cheap enough for use inside a kernel: random
  bits of lane and head, and the indices of query (in the segment) and key (in
  memory and segment). They broadcast to the shape of the result.
  """
  start = _mixed(seed + query * _STRIDE)  # From where a query's keys count.
  bits = _mixed(start ^ (key * _STRIDE))
  return bits >= int(rate * 2**32) - 2**31


def _mixed(bits: jax.Array) -> jax.Array:
  """Spreads every bit over the higher ones: Wellons' `lowbias32`, shortened.

  Its last step would only change the lower half.
  """
  bits = bits ^ jax.lax.shift_right_logical(bits, 16)
  bits = bits * 0x7FEB352D
  bits = bits ^ jax.lax.shift_right_logical(bits, 15)
  return bits * (0x846CA68B - (1 << 32))
