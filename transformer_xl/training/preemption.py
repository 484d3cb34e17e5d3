"""A request to stop, as schedulers send it before they take a machine away."""

import signal
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT interrupts.

  A context manager; what handled the signals before does so again after it.
  With several processes JAX handles SIGTERM: if one of them gets it, `poll`
  tells all of them at the same turn.
  """

  def __init__(self):
    self.requested = False  # As of the last poll.
    self._received = False
    self._polls = 0
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> "StopSignal":
    if jax.process_count() == 1:
      for number in (signal.SIGTERM, signal.SIGINT):
        self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def poll(self) -> bool:
    """Whether to stop; to be asked equally often in all processes."""
    if jax.process_count() > 1:
      self._polls += 1
      reached = multihost_utils.reached_preemption_sync_point(self._polls)
      self._received = self._received or reached
    self.requested = self._received
    return self.requested

  def _handle(self, number: int, _: FrameType | None) -> None:
    if self._received and number == signal.SIGINT:
      raise KeyboardInterrupt
    self._received = True
    name = signal.Signals(number).name
    logging.warning("%s: stopping after this chunk, with a checkpoint.", name)
