"""When a checkpoint is due: by steps and by the clock."""

import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_xl.config import schema


class SavePolicy:
  """Decides when to save; the clock is that of the first process."""

  def __init__(
    self,
    config: schema.CheckpointConfig,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._config = config
    self._clock = clock
    self._last = clock()

  def is_due(self, step: int) -> bool:
    """Whether to save after `step` updates; all processes must ask together."""
    minutes = self._config.every_minutes
    by_clock = minutes > 0 and self._clock() - self._last >= minutes * 60
    if minutes > 0 and jax.process_count() > 1:
      shared = multihost_utils.broadcast_one_to_all(np.asarray(by_clock))
      by_clock = bool(shared)
    return by_clock or step % self._config.every_steps == 0

  def saved(self) -> None:
    """Restarts the clock."""
    self._last = self._clock()
