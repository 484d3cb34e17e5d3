"""Requests to stop, as schedulers send them before they reclaim a machine."""

import itertools
import os
import signal
import time

import jax
from absl import logging

from transformer_xl import signals
from transformer_xl.processes import others

# Engines and terminals send a signal twice where a command is wrapped in
# another one.
_ONE_REQUEST_SECONDS = 1.0
# Processes compare the numbers of their polls, which go on from one run of a
# study to the next.
_POLLS = itertools.count(1)


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT ends the process.

  A context manager that restores the previous handlers at its end, and leaves
  to them what came too late for the last `poll`. Once one of several processes
  has received a signal, the same call of `poll` returns True in all of them.
  SIGHUP from a lost terminal stops nothing. What arrives within a second of the
  first signal repeats it.

  Attributes:
    requested: whether to stop, as of the last `poll`.
  """

  def __init__(self):
    self.requested = False
    self._first: signal.Signals | None = None
    self._answered_at: float | None = None

  def __enter__(self) -> "StopSignal":
    self._is_alone = jax.process_count() == 1
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    self._listener = signals.Listener(numbers, self._answer, self._handle)
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    self._listener.close()
    if self._first is not None and not self.requested and kind is None:
      os.kill(os.getpid(), self._first)

  @property
  def number(self) -> signal.Signals:
    """The first signal that asked to stop; SIGTERM if it came elsewhere."""
    return self._first or signal.SIGTERM

  def poll(self) -> bool:
    """Whether to stop; all processes must call it equally often."""
    if self._is_alone:
      self.requested = self._first is not None
    else:
      self.requested |= others.stops(next(_POLLS))
    return self.requested

  def _handle(self, number: int, *_: object) -> None:
    if signals.asks_to_stop(number):
      self._first = self._first or signal.Signals(number)

  def _answer(self, number: signal.Signals) -> None:
    """Tells the user what each signal leads to, as soon as it arrives."""
    now = time.monotonic()
    if not signals.asks_to_stop(number):
      signals.continue_without_terminal()
    elif self._answered_at is None:
      self._answered_at = now
      logging.warning(
        "%s: stopping after this chunk, with a checkpoint. %s ends at once "
        "and keeps what is saved.",
        number.name,
        "A second Ctrl-C" if number == signal.SIGINT else "Ctrl-C",
      )
      others.ask_to_stop()
    elif (
      number == signal.SIGINT and now - self._answered_at > _ONE_REQUEST_SECONDS
    ):
      line = (
        "interrupted twice; the same command continues from the last complete "
        "checkpoint."
      )
      others.leave(signals.INTERRUPTED, line)
      signals.end(line)
