"""Requests to stop, as schedulers send them before they reclaim a machine."""

import signal
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT interrupts.

  A context manager that restores the previous handlers at its end. With several
  processes JAX handles SIGTERM: once one process has received it, the same call
  of `poll` returns True in all of them.
  """

  def __init__(self):
    self.requested = False  # As of the last `poll`.
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
    """Whether to stop; all processes must call it equally often."""
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
