"""Attention with linear biases (Press et al. 2021).

A score falls by a slope of its head for every token of distance. The slopes
are constants, so there is nothing to learn and no longest distance.
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import encoding


@registry.encodings.register("alibi")
class Alibi(encoding.Encoding):
  """A penalty proportional to the distance, added to scaled scores."""

  def distance_terms(
    self,
    module: nn.Module,
    project: parameters.Projections,
    positions: shapes.Positions | None,
    num_keys: int,
    biases: shapes.BiasPair | None,
  ) -> scores.DistanceTerms:
    """The slopes of all heads, in float32."""
    del project, positions, num_keys, biases
    heads = slopes(module.config.num_heads)
    return scores.DistanceTerms(slopes=jnp.asarray(heads, jnp.float32))


def slopes(num_heads: int) -> list[float]:
  """How much the scores of each head fall with a token of distance.

  For n heads, a power of two: 2^(-8/n), 2^(-16/n), ..., 2^-8. Other numbers of
  heads have the slopes of the power below, then every other slope of the power
  above, as in the authors' program.
  """
  power = 1 << (num_heads.bit_length() - 1)  # The largest up to `num_heads`.
  first = _geometric(power)
  more = _geometric(2 * power)
  return first + more[::2][: num_heads - power]


def _geometric(count: int) -> list[float]:
  """The slopes of `count` heads, a power of two."""
  return [2.0 ** (-8 * (index + 1) / count) for index in range(count)]
