"""Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

import optax

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer


@registry.optimizers.register("adamw")
class AdamW(optimizer.Optimizer):
  """Adam, and a weight decay that does not go through its means."""

  uses = ("weight_decay", "adam_b2", "adam_epsilon")

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The quotient of Adam's means, and the decay."""
    return optax.chain(
      optimizer.scale_by_adam(config), optimizer.decay_weights(config)
    )
