"""When a checkpoint is due: by steps and by the clock."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl.config import schema


class SavePolicy:
  """Decides when to save; several processes save together.

  Their clocks differ, so they ask each other through the devices whether the
  time is over in any of them. Nobody waits for the answer: it is read at the
  next call, when the devices have computed what came before it.
  """

  def __init__(
    self,
    config: schema.CheckpointConfig,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts the clock."""
    self._config = config
    self._clock = clock
    self._last = clock()
    self._answer: jax.Array | None = None  # To the question of the last call.

  def is_due(self, step: int) -> bool:
    """Whether to save after `step` updates; all processes must ask together."""
    return self._is_due_by_clock() or step % self._config.every_steps == 0

  def saved(self) -> None:
    """Restarts the clock, in all processes together."""
    self._last = self._clock()
    self._answer = None

  def _is_due_by_clock(self) -> bool:
    minutes = self._config.every_minutes
    if minutes <= 0:
      return False
    is_over = self._clock() - self._last >= minutes * 60
    if jax.process_count() == 1:
      return is_over
    answer = self._answer
    self._answer = _in_any_process(is_over)
    return answer is not None and bool(answer)


def _in_any_process(holds: bool) -> jax.Array:
  """Whether something holds in any process, once the devices have computed it.

  All processes must call it together.
  """
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ("devices",))
  by_device = jax.NamedSharding(mesh, jax.P("devices"))
  everywhere = jax.NamedSharding(mesh, jax.P())
  own = np.full(jax.local_device_count(), holds)
  with jax.set_mesh(mesh):
    all_answers = jax.make_array_from_process_local_data(by_device, own)
    return jax.jit(jnp.any, out_shardings=everywhere)(all_answers)
