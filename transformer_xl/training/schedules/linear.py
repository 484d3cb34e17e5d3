"""A straight line."""

import jax

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.schedules import schedule


@registry.schedules.register("linear")
class Linear(schedule.Decaying):
  """From the peak to its share along a line."""

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The rate of docs/specification.md, section 15."""
    floor = config.min_learning_rate_ratio
    share = 1 - (1 - floor) * schedule.done(config, update)
    return config.learning_rate * share
