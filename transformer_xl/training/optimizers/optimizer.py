"""The interface of an optimizer.

An optimizer is one file with a class that registers itself, in this folder or
in an extension:

    @registry.optimizers.register("name")
    class Name(optimizer.Optimizer):
      ...

Its name is then a value of `train.optimizer`.
"""

from typing import ClassVar

import jax
import optax

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import schema
from transformer_xl.model import parameters

_ADAM_B1 = 0.9  # Decay per update of Adam's mean of gradients.


class Optimizer:
  """What turns gradients into updates.

  Attributes:
    Fields: fields of its own, which are `config.train.NAME.*`; None for none.
    uses: names of fields of `config.train` that it reads and that not every
      optimizer does. Setting one of them for another optimizer is a warning.
  """

  Fields: ClassVar[type[fields.Group] | None] = None
  uses: ClassVar[tuple[str, ...]] = ()

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The transformation of clipped gradients, without the learning rate.

    The result is multiplied by the learning rate, so it has to be what an
    update at the rate 1 subtracts. Arrays of layers are stacked in front.
    `config.learning_rate` is a scalar of the program, as in a schedule.
    """
    raise NotImplementedError


def scale_by_adam(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Adam's quotient of means (Kingma and Ba 2015, algorithm 1)."""
  return optax.scale_by_adam(_ADAM_B1, config.adam_b2, config.adam_epsilon)


def decay_weights(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Decoupled weight decay of matrices and tables (Loshchilov and Hutter 2019).

  It is scaled by the learning rate.
  """
  return optax.add_decayed_weights(config.weight_decay, decayed_parameters)


def decayed_parameters(params: shapes.PyTree) -> shapes.PyTree:
  """True for matrices and tables, False for biases and layer norms."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: not parameters.is_bias_or_scale(path[-1].key), params
  )
