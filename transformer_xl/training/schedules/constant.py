"""A learning rate that stays."""

import jax
import jax.numpy as jnp

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.schedules import schedule


@registry.schedules.register("constant")
class Constant(schedule.Schedule):
  """The peak."""

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The peak."""
    return jnp.full_like(update, config.learning_rate)
