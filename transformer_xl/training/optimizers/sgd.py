"""Stochastic gradient descent, plain or with momentum."""

import optax

from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer


@registry.optimizers.register("sgd")
class SGD(optimizer.Optimizer):
  """The gradient itself, or its momentum."""

  class Fields(fields.Group):
    """Momentum of `sgd`."""

    momentum: float = fields.field(0.0, "in [0, 1)")
    """Share of the sum of earlier gradients that an update keeps; 0 for
    none."""

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The clipped gradient, added to what is kept of those before it."""
    momentum = config.own(SGD.Fields).momentum
    return optax.trace(momentum) if momentum else optax.identity()
