"""Cross-entropy of logits that come in parts, with a gradient rule of its own.

Shapes: B lanes, T tokens, V_c logits of a part.
"""

import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

NORMALISER = "normaliser"  # For policies that spare a second pass over logits.


@jax.custom_vjp
def cross_entropy(
  parts: tuple[jax.Array, ...], targets: jax.Array
) -> jax.Array:
  """Losses [B, T] for logits that come in parts, each [B, T, V_c].

  With a rule of its own for the gradient, since JAX's keeps the exponentials
  and the mask beside the logits. Parts, since joining them would copy them.
  """
  return _forward(parts, targets)[0]


def _forward(parts, targets):
  normalisers = [jax.nn.logsumexp(part, axis=-1) for part in parts]
  normaliser = functools.reduce(jnp.logaddexp, normalisers)
  normaliser = ad_checkpoint.checkpoint_name(normaliser, NORMALISER)
  # A sum over a mask leaves a vocabulary that is split over devices where it
  # is; a gather would not.
  chosen = [
    jnp.sum(jnp.where(mask, part, 0.0), axis=-1)
    for part, mask in zip(parts, _columns(parts, targets), strict=True)
  ]
  losses = normaliser - functools.reduce(jnp.add, chosen)
  return losses, (parts, normaliser, targets)


def _backward(saved, gradient):
  parts, normaliser, targets = saved
  return tuple(
    gradient[..., None] * (jnp.exp(part - normaliser[..., None]) - mask)
    for part, mask in zip(parts, _columns(parts, targets), strict=True)
  ), None


cross_entropy.defvjp(_forward, _backward)


def _columns(parts, targets) -> list[jax.Array]:
  """Where each part has the logits of the targets."""
  result, start = [], 0
  for part in parts:
    column = jax.lax.broadcasted_iota(targets.dtype, part.shape, 2)
    result.append(column == targets[..., None] - start)
    start += part.shape[-1]
  return result
