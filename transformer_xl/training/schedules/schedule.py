"""The interface of a learning-rate schedule.

A schedule is one file with a class that registers itself, in this folder or in
an extension:

    @registry.schedules.register("name")
    class Name(schedule.Schedule):
      ...

Its name is then a value of `train.schedule`. Formulas and sources:
docs/specification.md, section 15.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from transformer_xl.config import fields
from transformer_xl.config import schema


class Schedule:
  """The learning rate after warm-up.

  Attributes:
    Fields: fields of its own, which are `config.train.NAME.*`; None for none.
    uses: names of fields of `config.train` that it reads and that not every
      schedule does. Setting one of them for another schedule is a warning.
  """

  Fields: ClassVar[type[fields.Group] | None] = None
  uses: ClassVar[tuple[str, ...]] = ()

  @staticmethod
  def rate(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
    """The learning rate of an update, counted from 0, in float32.

    `update` is a scalar at or after `config.warmup_steps`; what is returned for
    smaller ones is not used. Inside the compiled update, `config.learning_rate`
    is a traced scalar too: compute with `jnp`, without `math`, NumPy or `if`.
    """
    raise NotImplementedError


class Decaying(Schedule):
  """A schedule that falls to a share of the peak, and stays there."""

  uses = ("min_learning_rate_ratio", "decay_steps")


def done(config: schema.TrainConfig, update: jax.Array) -> jax.Array:
  """The share of the updates from warm-up to `decay_steps` that are over."""
  warmup = config.warmup_steps
  return jnp.clip((update - warmup) / (config.decay_steps - warmup), 0, 1)
