"""Half a cosine (Loshchilov and Hutter 2017), the paper's schedule."""

import jax
import jax.numpy as jnp

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.schedules import schedule


@registry.schedules.register("cosine")
class Cosine(schedule.Decaying):
  """From the peak to its share along half a cosine."""

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The rate of docs/specification.md, section 15."""
    floor = config.min_learning_rate_ratio
    wave = jnp.cos(jnp.pi * schedule.done(config, update))
    share = (1 - floor) * (0.5 * (1 + wave)) + floor
    return config.learning_rate * share
