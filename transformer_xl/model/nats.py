"""Losses in nats: their sums, and other units of their means."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class Sums(NamedTuple):
  """Sums over tokens, in float32."""

  nll: jt.Float[shapes.Array, ""]  # Nats.
  num_tokens: jt.Float[shapes.Array, ""]


def sum_losses(losses: shapes.Losses, weights: shapes.Weights) -> Sums:
  """Sums losses and weights over all tokens."""
  return Sums(weighted_sum(losses, weights), jnp.sum(weights))


def weighted_sum(
  losses: shapes.Losses, weights: shapes.Weights
) -> jt.Float[shapes.Array, ""]:
  """Sums weighted losses over all tokens, in an order that no mesh changes.

  The tokens of each lane are summed first, because a lane is never split over
  devices. The barrier keeps XLA from merging the two sums.
  """
  lanes = jax.lax.optimization_barrier(jnp.sum(losses * weights, axis=1))
  return jnp.sum(lanes)


def perplexity(nll: float) -> float:
  """Perplexity of a mean loss in nats; infinite from 700 nats, NaN of NaN."""
  return math.inf if nll >= 700 else math.exp(nll)


def bits(nll: float) -> float:
  """Converts nats to bits."""
  return nll / math.log(2)
