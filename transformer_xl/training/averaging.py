"""Averages of the parameters: the mean of the last part of training, or moving.

The mean is that of ASGD and starts after a configured step. A moving average
(EMA) has no start.
"""

import math

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes


def mean_since(
  start: int, mean: shapes.PyTree, params: shapes.PyTree, step: jax.Array
) -> shapes.PyTree:
  """The mean of the parameters after updates `start` + 1 to `step`, a scalar.

  Of these updates, `params` is after the last and `mean` is over the others.
  Up to update `start` + 1 the result is `params`.
  """
  count = jnp.maximum(step - start, 1)
  return optax.incremental_update(params, mean, 1 / count)


def moving(
  average: shapes.PyTree, params: shapes.PyTree, step: jax.Array, decay: float
) -> shapes.PyTree:
  """The moving average of the parameters after updates 1 to `step`, a scalar.

  It is corrected for its start as Adam's moments are (Kingma and Ba 2015,
  section 3): the parameters of update k weigh in by decay^(step - k), and the
  random ones that training began with not at all.
  """
  # 1 - decay^step, in which float32 would lose the digits of the first updates.
  total = -jnp.expm1(step * math.log(decay))
  return optax.incremental_update(params, average, (1 - decay) / total)
