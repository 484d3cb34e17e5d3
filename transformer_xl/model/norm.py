"""Norms of states, which keep only their input for the backward pass.

Layer norm (Ba et al. 2016) subtracts the mean of the channels and divides by
their deviation. RMS norm (Zhang and Sennrich 2019) divides by the root of their
mean square, and has no offset.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import hardware
from transformer_xl.config import schema

# The input, the scale, and each row's mean and factor.
Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class Norm(nn.Module):
  """The norm that `config.norm` names, with statistics in float32."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Normalises the last axis of [B, T, D]."""
    width = (hidden.shape[-1],)
    scale = self.param("scale", nn.initializers.ones, width, jnp.float32)
    if self.config.norm == "rms":
      return rms_norm(hidden, scale, self.config.layer_norm_epsilon)
    offset = self.param("bias", nn.initializers.zeros, width, jnp.float32)
    epsilon = self.config.layer_norm_epsilon
    return _normalised(hidden, scale, offset, epsilon, True)


def rms_norm(hidden: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
  """Divides rows [..., W] by their root mean square, times a scale [W]."""
  return _normalised(hidden, scale, jnp.zeros_like(scale), epsilon, False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normalised(
  hidden: jax.Array,
  scale: jax.Array,
  offset: jax.Array,
  epsilon: float,
  centres: bool,
) -> jax.Array:
  """Normalises; `centres` subtracts the mean of a row."""
  return _forward(hidden, scale, offset, epsilon, centres)[0]


def _forward(
  hidden: jax.Array,
  scale: jax.Array,
  offset: jax.Array,
  epsilon: float,
  centres: bool,
) -> tuple[jax.Array, Residuals]:
  """The result and the residuals, without a float32 copy of [B, T, D]."""
  wide = hidden.astype(jnp.float32)
  mean = jnp.zeros((*hidden.shape[:-1], 1), jnp.float32)
  if centres:
    mean = jnp.mean(wide, axis=-1, keepdims=True)
  if hidden.dtype == jnp.float32:
    variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
  else:
    # E[x^2] - E[x]^2 takes one pass. The difference loses digits, but fewer
    # than float32 has beyond those of the input.
    squares = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    variance = jnp.maximum(squares - jnp.square(mean), 0)
  # A row of zeros (a dropped word that sees no other) stays zero. Otherwise
  # every norm would multiply its gradient by 1 / sqrt(epsilon), to infinity.
  factor = jnp.where(variance > 0, jax.lax.rsqrt(variance + epsilon), 0.0)
  scaled = (wide - mean) * factor * _as_row(scale, hidden)
  result = scaled + _as_row(offset, hidden)
  return result.astype(hidden.dtype), (hidden, scale, mean, factor)


def _backward(
  epsilon: float, centres: bool, residuals: Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Gradients of the input, the scale and the offset."""
  del epsilon  # It is in the factor.
  hidden, scale, mean, factor = residuals
  normal = (hidden.astype(jnp.float32) - mean) * factor
  gradient = gradient.astype(jnp.float32)
  of_normal = gradient * _as_row(scale, hidden)
  along = jnp.mean(of_normal * normal, axis=-1, keepdims=True)
  across = of_normal
  if centres:
    across = of_normal - jnp.mean(of_normal, axis=-1, keepdims=True)
  of_hidden = factor * (across - normal * along)
  return (
    of_hidden.astype(hidden.dtype),
    _sum_of_rows(gradient * normal),
    _sum_of_rows(gradient),
  )


def _sum_of_rows(array: jax.Array) -> jax.Array:
  """Sums [..., T, W] to [W].

  For a sum of columns XLA gives each 128 of them one block of a GPU, which is
  next to none of it. Summing within lanes first employs more. Without the
  barrier XLA would join the two sums again.
  """
  if hardware.is_gpu():
    array = jax.lax.optimization_barrier(jnp.sum(array, axis=-2))
  return jnp.sum(array, axis=tuple(range(array.ndim - 1)))


def _as_row(vector: jax.Array, hidden: jax.Array) -> jax.Array:
  """A vector [W] with the axes of [..., W] in front."""
  return jnp.expand_dims(vector, tuple(range(hidden.ndim - 1)))


_normalised.defvjp(_forward, _backward)
