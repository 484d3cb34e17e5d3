"""Adam (Kingma and Ba 2015)."""

import optax

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer


@registry.optimizers.register("adam")
class Adam(optimizer.Optimizer):
  """Adam, without weight decay."""

  uses = ("adam_b2", "adam_epsilon")

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The quotient of Adam's means."""
    return optimizer.scale_by_adam(config)
