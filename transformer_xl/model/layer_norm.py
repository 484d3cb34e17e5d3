"""Layer norm that keeps only its input for the backward pass."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl.config import schema

# The input, the scale, and each row's mean and factor.
Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class LayerNorm(nn.Module):
  """Layer norm with statistics in float32."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Normalises the last axis of [B, T, D]."""
    width = (hidden.shape[-1],)
    scale = self.param("scale", nn.initializers.ones, width, jnp.float32)
    offset = self.param("bias", nn.initializers.zeros, width, jnp.float32)
    return _normalised(hidden, scale, offset, self.config.layer_norm_epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalised(
  hidden: jax.Array, scale: jax.Array, offset: jax.Array, epsilon: float
) -> jax.Array:
  return _forward(hidden, scale, offset, epsilon)[0]


def _forward(
  hidden: jax.Array, scale: jax.Array, offset: jax.Array, epsilon: float
) -> tuple[jax.Array, Residuals]:
  """The result and the residuals, without a float32 copy of [B, T, D]."""
  wide = hidden.astype(jnp.float32)
  mean = jnp.mean(wide, axis=-1, keepdims=True)
  if hidden.dtype == jnp.float32:
    variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
  else:  # One pass: the difference loses fewer digits than the type lacks.
    squares = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    variance = jnp.maximum(squares - jnp.square(mean), 0)
  # A row of zeros (a dropped word that sees no other) stays zero. Otherwise
  # every norm would multiply its gradient by 1 / sqrt(epsilon), to infinity.
  factor = jnp.where(variance > 0, jax.lax.rsqrt(variance + epsilon), 0.0)
  result = (wide - mean) * factor * scale[None, None] + offset[None, None]
  return result.astype(hidden.dtype), (hidden, scale, mean, factor)


def _backward(
  epsilon: float, residuals: Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Gradients of the input, the scale and the offset."""
  del epsilon  # It is in the factor.
  hidden, scale, mean, factor = residuals
  normal = (hidden.astype(jnp.float32) - mean) * factor
  gradient = gradient.astype(jnp.float32)
  of_normal = gradient * scale[None, None]
  along = jnp.mean(of_normal * normal, axis=-1, keepdims=True)
  across = of_normal - jnp.mean(of_normal, axis=-1, keepdims=True)
  of_hidden = factor * (across - normal * along)
  return (
    of_hidden.astype(hidden.dtype),
    jnp.sum(gradient * normal, axis=(0, 1)),
    jnp.sum(gradient, axis=(0, 1)),
  )


_normalised.defvjp(_forward, _backward)
