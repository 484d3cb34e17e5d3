"""When a checkpoint is due: by steps and by the clock."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax

# JAX has no public access to its coordination service's store.
from jax._src import distributed

from transformer_xl.config import schema

# Calls between a decision and its save. When a process asks about one chunk,
# all have computed the chunk before it, so all have asked about the one before
# that.
_AHEAD = 2
_instances = itertools.count()  # The same in all processes.


class SavePolicy:
  """Decides when to save; the clock is that of the first process.

  Several processes cannot ask each other through the devices without waiting
  for them. The first therefore decides two calls ahead, and the others read its
  decision from the coordination service.
  """

  def __init__(
    self,
    config: schema.CheckpointConfig,
    clock: Callable[[], float] = time.monotonic,
    store: Any = None,
  ):
    """Starts the clock; `store` replaces JAX's coordination service."""
    self._config, self._clock, self._store = config, clock, store
    if store is None and jax.process_count() > 1:
      self._store = distributed.global_state.client
    self._folder = f"save_policy/{next(_instances)}"
    self._last = clock()
    self._calls, self._saves = 0, 0
    self._decided: int | None = None  # The call that is due.

  def is_due(self, step: int) -> bool:
    """Whether to save after `step` updates; all processes must ask together."""
    self._calls += 1
    return self._is_due_by_clock() or step % self._config.every_steps == 0

  def saved(self) -> None:
    """Restarts the clock, in all processes together."""
    self._last = self._clock()
    self._saves += 1
    self._decided = None

  def _is_due_by_clock(self) -> bool:
    minutes = self._config.every_minutes
    if minutes <= 0:
      return False
    is_over = self._clock() - self._last >= minutes * 60
    if self._store is None:
      return is_over
    folder = f"{self._folder}/{self._saves}/"
    if self._decided is None:
      if jax.process_index() > 0:
        found = self._store.key_value_dir_get(folder)
        self._decided = int(found[0][1]) if found else None
      elif is_over:
        self._decided = self._calls + _AHEAD
        self._store.key_value_set(f"{folder}call", str(self._decided))
    return self._decided is not None and self._calls >= self._decided
