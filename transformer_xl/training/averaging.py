"""The mean of the parameters over the last part of training (ASGD).

Where that part begins is a step of the configuration, or is found while
training: as soon as the validation loss no longer falls (NT-ASGD, Merity et
al. 2017, algorithm 1). The moving average is a line in `step.py`.
"""

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes
from transformer_xl.config import schema

NEVER = 2**31 - 1  # A step that does not come.


class Start:
  """After which update averaging starts; a value for a checkpoint's metadata.

  Attributes:
    step: of that update, or NEVER.
    losses: of validation so far, in nats, oldest first.
  """

  def __init__(self, config: schema.TrainConfig):
    self._patience = config.asgd_patience
    self.step = config.asgd_start_step or NEVER
    self.losses: list[float] = []

  def restore(self, saved: dict | None, *, step: int) -> None:
    """Continues from a checkpoint, whose run may have been told otherwise.

    A mean that was begun goes on, unless the configuration has it start later
    than `step`. What should have begun by now and did not begins at `step`.

    Args:
      saved: the checkpoint's metadata, if it has any.
      step: of the checkpoint.
    """
    begun = NEVER
    if saved is not None:
      begun, self.losses = saved["step"], saved["losses"]
    if self.step <= step:
      self.step = min(begun, step)
    elif self._patience and begun <= step:
      self.step = begun

  def saved(self) -> dict:
    """What `restore` takes."""
    return {"step": self.step, "losses": list(self.losses)}

  def add(self, nll: float, *, step: int) -> bool:
    """Takes a validation loss; whether averaging starts with it.

    It does when the loss is above the best of those that are more than
    `asgd_patience` evaluations old.
    """
    old = self.losses[: len(self.losses) - self._patience]
    starts = (
      self._patience > 0 and self.step == NEVER and bool(old) and nll > min(old)
    )
    self.losses.append(nll)
    if starts:
      self.step = step
    return starts


def mean_since(
  start: jax.Array,
  mean: shapes.PyTree,
  params: shapes.PyTree,
  step: jax.Array,
) -> shapes.PyTree:
  """The mean of the parameters after the updates `start` + 1 to `step`.

  Args:
    start: of averaging; until the update after it the mean is `params`.
    mean: up to the update before.
    params: after this update.
    step: which update this is, counted from 1; a scalar like `start`.
  """
  count = jnp.maximum(step - start, 1)
  return optax.incremental_update(params, mean, 1 / count)
