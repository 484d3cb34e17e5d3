"""Constant, then linear decay: WSD (Hu et al. 2024)."""

import jax
import jax.numpy as jnp

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.schedules import schedule

_DECAY = 0.2  # Share of the updates in which the rate falls.


@registry.schedules.register("wsd")
class WarmupStableDecay(schedule.Decaying):
  """The peak, and a line to its share in the last fifth."""

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The rate of docs/specification.md, section 15."""
    last = config.decay_steps
    floor = config.min_learning_rate_ratio
    left = jnp.minimum((last - update) / (_DECAY * last), 1)
    share = floor + (1 - floor) * jnp.maximum(left, 0)
    return config.learning_rate * share
