"""A request to stop, as schedulers send it before they take a machine away."""

import signal
from types import FrameType
from typing import Any

from absl import logging


class Interrupted(Exception):  # noqa: N818
  """Something long was left because of a signal; no error."""


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT interrupts.

  A context manager; what handled the signals before does so again after it.
  """

  def __init__(self):
    self.requested = False
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> "StopSignal":
    for number in (signal.SIGTERM, signal.SIGINT):
      self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _handle(self, number: int, _: FrameType | None) -> None:
    if self.requested and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.requested = True
    name = signal.Signals(number).name
    logging.warning("%s: stopping after this chunk, with a checkpoint.", name)
