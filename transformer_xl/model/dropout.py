"""Dropout, as a function of the position in an array.

Whether an element is dropped follows from random bits and its indices, by a
hash. So every implementation drops the same elements on any mesh, and no mask
is kept for the backward pass: it computes the mask again.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import ad_checkpoint

from transformer_xl import shapes

# Odd, so that distinct indices stay distinct; 2^32 divided by the golden ratio.
_STRIDE = 0x9E3779B9 - (1 << 32)


class AttentionDropout(NamedTuple):
  """Dropout of attention weights."""

  rate: float
  seeds: jt.Int[shapes.Array, "B H"]  # Random bits.


class Dropout(nn.Module):
  """Zeros some elements and scales up the others to compensate.

  With `locked`, all indices of the second axis from the right share a mask.
  """

  rate: float
  locked: bool = False

  @nn.compact
  def __call__(
    self, values: jax.Array, *, deterministic: bool, relu: bool = False
  ) -> jax.Array:
    """Drops elements of any array [..., F], after a ReLU if `relu`.

    Without dropout if `deterministic`; else a "dropout" key is needed.
    """
    rate = 0.0 if deterministic else self.rate
    seed = _bits(self, ()) if rate else jnp.zeros((), jnp.int32)
    if relu:
      return _relu(values, seed, rate, self.locked)
    return _drop(values, seed, rate, self.locked, 0) if rate else values


def of_attention(
  module: nn.Module, rate: float, shape: tuple[int, int]
) -> AttentionDropout:
  """Dropout of attention weights, with new random bits for each [B, H]."""
  return AttentionDropout(rate, _bits(module, shape))


def drop_weights(
  weights: jt.Float[shapes.Array, "B H T K"],
  dropout: AttentionDropout | None,
  *,
  first_query: int,
) -> jt.Float[shapes.Array, "B H T K"]:
  """Drops attention weights; the first row is that of query `first_query`."""
  if dropout is None:
    return weights
  return _drop(weights, dropout.seeds, dropout.rate, False, first_query)


def kept(
  seed: jax.Array, row: jax.Array, column: jax.Array, *, rate: float
) -> jax.Array:
  """Whether dropout keeps an element.

  A hash of three int32 numbers, cheap enough for use inside a kernel: random
  bits and two indices. They broadcast to the shape of the result.
  """
  start = _mixed(seed + row * _STRIDE)  # From where a row's columns count.
  bits = _mixed(start ^ (column * _STRIDE))
  return bits >= int(rate * 2**32) - 2**31


def _bits(module: nn.Module, shape: tuple[int, ...]) -> jax.Array:
  bits = jax.random.bits(module.make_rng("dropout"), shape)
  return jax.lax.bitcast_convert_type(bits, jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _drop(values, seeds, rate, locked, first_row):
  """Drops elements of an array whose first axes are those of `seeds`."""
  keeps = _kept_elements(values.shape, seeds, rate, locked, first_row)
  return jnp.where(keeps, values * (1 / (1 - rate)), 0).astype(values.dtype)


_drop.defvjp(
  lambda values, seeds, *rule: (_drop(values, seeds, *rule), seeds),
  lambda *arguments: (
    _drop(arguments[-1], arguments[-2], *arguments[:3]),
    None,
  ),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _relu(values, seeds, rate, locked):
  positive = jnp.maximum(values, 0)
  return _drop(positive, seeds, rate, locked, 0) if rate else positive


def _relu_forward(*arguments):
  output = _relu(*arguments)
  output = ad_checkpoint.checkpoint_name(output, "feed_forward_hidden")
  return output, output


def _relu_backward(rate, locked, output, gradient):
  """What is negative or dropped is 0 in the output, so that tells both."""
  del locked
  scaled = gradient * (1 / (1 - rate))
  return jnp.where(output > 0, scaled, 0).astype(gradient.dtype), None


_relu.defvjp(_relu_forward, _relu_backward)


def _kept_elements(shape, seeds, rate, locked, first_row) -> jax.Array:
  """Which elements dropout keeps; if locked, with a single row."""
  sides = [*shape[:-2], 1 if locked else shape[-2], shape[-1]]
  *rows, column = (
    jax.lax.broadcasted_iota(
      jnp.int32, [1] * axis + [side] + [1] * (len(sides) - axis - 1), axis
    )
    for axis, side in enumerate(sides)
  )
  outer, row = rows[seeds.ndim : -1], rows[-1] + first_row
  seeds = seeds.reshape(seeds.shape + (1,) * (len(sides) - seeds.ndim))
  for index in outer:
    seeds = _mixed(seeds + index * _STRIDE)
  return kept(seeds, row, column, rate=rate)


def _mixed(bits: jax.Array) -> jax.Array:
  """Spreads every bit over the higher ones: Wellons' `lowbias32`, shortened.

  Its last step would only change the lower half.
  """
  bits = bits ^ jax.lax.shift_right_logical(bits, 16)
  bits = bits * 0x7FEB352D
  bits = bits ^ jax.lax.shift_right_logical(bits, 15)
  return bits * (0x846CA68B - (1 << 32))
