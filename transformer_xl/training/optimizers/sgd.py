"""Stochastic gradient descent without momentum."""

import optax

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer


@registry.optimizers.register("sgd")
class SGD(optimizer.Optimizer):
  """The gradient itself."""

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The clipped gradient."""
    del config
    return optax.identity()
