"""The inverse square root of the update (Vaswani et al. 2017)."""

import jax
import jax.numpy as jnp

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.schedules import schedule


@registry.schedules.register("inverse_sqrt")
class InverseSqrt(schedule.Schedule):
  """The peak, falling with the root of the number of updates."""

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The rate of docs/specification.md, section 15."""
    start = max(config.warmup_steps, 1)
    return config.learning_rate * jnp.sqrt(start / jnp.maximum(update, start))
