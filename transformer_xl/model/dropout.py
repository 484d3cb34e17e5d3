"""Dropout, as a function of the position in an array.

Whether an element is dropped follows from random bits and its indices, by a
hash. The index of a lane is its number in the whole batch, also when only a
part of the batch is read. So every implementation drops the same elements, on
any mesh and with any accumulation, and no mask is kept for the backward pass:
it computes the mask again.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import ad_checkpoint

from transformer_xl import shapes
from transformer_xl.config import schema

# Odd, so that distinct indices stay distinct; 2^32 divided by the golden ratio.
_STRIDE = 0x9E3779B9 - (1 << 32)


class AttentionDropout(NamedTuple):
  """Dropout of attention weights."""

  rate: float
  seeds: jt.Int[shapes.Array, "B H"]


class Dropout(nn.Module):
  """Zeros some elements and scales up the others to compensate.

  With `locked`, all indices of the second axis from the right share a mask.
  States [B, T, F] have masks for each lane. A matrix [rows, F], such as weights
  or encodings of distances, has one mask for all lanes.
  """

  rate: float
  locked: bool = False

  @nn.compact
  def __call__(
    self,
    values: jt.Float[shapes.Array, "*B rows F"],
    *,
    dropout_lanes: shapes.Lanes | None,
    relu: bool = False,
  ) -> jt.Float[shapes.Array, "*B rows F"]:
    """Drops elements, after a ReLU if `relu`.

    Both in one function keep only the output for the backward pass. Without
    `dropout_lanes` nothing is dropped; else a "dropout" key is needed.
    """
    assert values.ndim in (2, 3)
    rate = 0.0
    seeds = jnp.zeros((), jnp.int32)
    if self.rate and dropout_lanes is not None:
      rate = self.rate
      seeds = _bits(self)
      if values.ndim == 3:
        seeds = _hashed(seeds, dropout_lanes)
    if relu:
      return _relu(values, seeds, rate, self.locked)
    return _drop(values, seeds, rate, self.locked, 0) if rate else values


def of_states(config: schema.ModelConfig, rate: float | None = None) -> Dropout:
  """Dropout of states [B, T, D], with `dropout_rate` unless one is given.

  With `locked_dropout` all tokens of a lane share a mask.
  """
  if rate is None:
    rate = config.dropout_rate
  return Dropout(rate, config.locked_dropout)


def of_attention(
  module: nn.Module, dropout_lanes: shapes.Lanes | None
) -> AttentionDropout | None:
  """Dropout of attention weights, if a module of a model has any.

  Each lane and head has a seed.
  """
  rate = module.config.attention_dropout_rate
  if not rate or dropout_lanes is None:
    return None
  lanes = _hashed(_bits(module), dropout_lanes)
  heads = jnp.arange(module.config.num_heads, dtype=jnp.int32)
  return AttentionDropout(rate, _hashed(lanes[:, None], heads[None]))


def drop_weights(
  weights: jt.Float[shapes.Array, "H B T K"],
  dropout: AttentionDropout | None,
  *,
  first_query: int,
) -> jt.Float[shapes.Array, "H B T K"]:
  """Drops attention weights; the first row is that of query `first_query`."""
  if dropout is None:
    return weights
  return _drop(weights, dropout.seeds.T, dropout.rate, False, first_query)


def keep_mask(
  seed: jax.Array, row: jax.Array, column: jax.Array, *, rate: float
) -> jax.Array:
  """True where dropout keeps an element.

  The result is a hash of three int32 numbers, random bits and two indices, and
  cheap enough for use inside a kernel. The arguments broadcast to its shape.
  """
  start = _hashed(seed, row)  # From where a row's columns count.
  bits = _mixed(start ^ (column * _STRIDE))
  return bits >= int(rate * 2**32) - 2**31


def _bits(module: nn.Module) -> jax.Array:
  bits = jax.random.bits(module.make_rng("dropout"))
  return jax.lax.bitcast_convert_type(bits, jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _drop(
  values: jax.Array,
  seeds: jax.Array,
  rate: float,
  locked: bool,
  first_row: int,
) -> jax.Array:
  """Drops elements of an array whose axes but two are those of `seeds`."""
  keeps = _kept_elements(values.shape, seeds, rate, locked, first_row)
  return jnp.where(keeps, values * (1 / (1 - rate)), 0).astype(values.dtype)


def _drop_forward(
  values: jax.Array,
  seeds: jax.Array,
  rate: float,
  locked: bool,
  first_row: int,
) -> tuple[jax.Array, jax.Array]:
  return _drop(values, seeds, rate, locked, first_row), seeds


def _drop_backward(
  rate: float,
  locked: bool,
  first_row: int,
  seeds: jax.Array,
  gradient: jax.Array,
) -> tuple[jax.Array, None]:
  return _drop(gradient, seeds, rate, locked, first_row), None


_drop.defvjp(_drop_forward, _drop_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _relu(
  values: jax.Array, seeds: jax.Array, rate: float, locked: bool
) -> jax.Array:
  positive = jnp.maximum(values, 0)
  return _drop(positive, seeds, rate, locked, 0) if rate else positive


def _relu_forward(
  values: jax.Array, seeds: jax.Array, rate: float, locked: bool
) -> tuple[jax.Array, jax.Array]:
  output = _relu(values, seeds, rate, locked)
  output = ad_checkpoint.checkpoint_name(output, "feed_forward_hidden")
  return output, output


def _relu_backward(
  rate: float, locked: bool, output: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None]:
  """Gradient of `_relu`: the output is 0 where the input was cut or dropped."""
  del locked
  scaled = gradient * (1 / (1 - rate))
  return jnp.where(output > 0, scaled, 0).astype(gradient.dtype), None


_relu.defvjp(_relu_forward, _relu_backward)


def _kept_elements(
  shape: tuple[int, ...],
  seeds: jax.Array,
  rate: float,
  locked: bool,
  first_row: int,
) -> jax.Array:
  """True where dropout keeps an element; has a single row if `locked`."""
  first = seeds.ndim
  num_rows = 1 if locked else shape[-2]
  iota = functools.partial(jax.lax.broadcasted_iota, jnp.int32)
  row = iota((1,) * first + (num_rows, 1), first)
  column = iota((1,) * first + (1, shape[-1]), first + 1)
  return keep_mask(seeds[..., None, None], row + first_row, column, rate=rate)


def _hashed(bits: jax.Array, index: jax.Array) -> jax.Array:
  """Random bits for each index of an axis; the arguments broadcast."""
  return _mixed(bits + index * _STRIDE)


def _mixed(bits: jax.Array) -> jax.Array:
  """Spreads every bit over the higher ones: Wellons' `lowbias32`, shortened.

  The step that is left out would only change the lower half.
  """
  bits = bits ^ jax.lax.shift_right_logical(bits, 16)
  bits = bits * 0x7FEB352D
  bits = bits ^ jax.lax.shift_right_logical(bits, 15)
  return bits * (0x846CA68B - (1 << 32))
