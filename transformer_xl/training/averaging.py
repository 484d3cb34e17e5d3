"""Averages of the parameters: the mean of the last part of training, or moving.

The mean is that of ASGD. It starts after a configured step, or as soon as the
validation loss stops improving (NT-ASGD, Merity et al. 2017, algorithm 1). The
train state keeps that step. A moving average (EMA) has no start.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.workdir import run_state


def resumed_start(config: schema.TrainConfig, saved: int, *, step: int) -> int:
  """Where averaging starts in a run that continues at `step`.

  An average that has begun, at the `saved` step, continues, unless the
  configuration starts it later than `step`. Overdue averaging starts at `step`.
  """
  start = config.asgd_start_step or run_state.NEVER
  if start <= step:
    return min(saved, step)
  return saved if config.asgd_patience and saved <= step else start


def start_after_loss(
  start: int, losses: Sequence[float], nll: float, *, step: int, patience: int
) -> int:
  """The start of averaging after the evaluation of `step`, `start` so far.

  Averaging starts once, when the loss `nll` is above the best of the earlier
  `losses`, oldest first, that are more than `patience` evaluations old. A
  patience of 0 turns the rule off.
  """
  older = losses[: max(0, len(losses) - patience)]
  stalled = patience > 0 and len(older) > 0 and nll > min(older)
  return step if stalled and start == run_state.NEVER else start


def mean_since(
  start: jax.Array, mean: shapes.PyTree, params: shapes.PyTree, step: jax.Array
) -> shapes.PyTree:
  """The mean of the parameters after updates `start` + 1 to `step`, scalars.

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
