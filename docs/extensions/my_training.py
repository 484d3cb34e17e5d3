"""Lion, and a learning rate that falls with the root of what is left."""

import jax.numpy as jnp
import optax

from transformer_xl import extend


@extend.optimizer("lion")
class Lion(extend.Optimizer):
  """The sign of a momentum (Chen et al. 2023)."""

  uses = ("weight_decay",)

  class Fields(extend.Fields):
    """The means of `lion`."""

    b1: float = extend.field(0.9, "in [0, 1)")
    """Share of the momentum in an update."""
    b2: float = extend.field(0.99, "in [0, 1)")
    """Decay per update of the momentum."""

  @staticmethod
  def make(config):
    own = config.own(Lion.Fields)
    return optax.chain(
      optax.scale_by_lion(own.b1, own.b2), extend.decay_weights(config)
    )


@extend.schedule("square_root")
class SquareRoot(extend.Schedule):
  """From the peak to 0 with the square root of the updates that are left."""

  uses = ("decay_steps",)

  @staticmethod
  def rate(config, update):
    left = 1 - update / config.decay_steps
    return config.learning_rate * jnp.sqrt(jnp.clip(left, 0, 1))
