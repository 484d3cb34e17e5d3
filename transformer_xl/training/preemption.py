"""Requests to stop, as schedulers send them before they reclaim a machine."""

import itertools
import os
import signal
import time

import jax
from absl import logging
from jax.experimental import multihost_utils

from transformer_xl import signals

# Engines and terminals send a signal twice where a command is wrapped in
# another one.
_ONE_REQUEST_SECONDS = 1.0
# JAX compares the numbers of polls in all processes, which it remembers from
# one run to the next of a study.
_POLLS = itertools.count(1)


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT ends the process.

  A context manager that restores the previous handlers at its end. With several
  processes JAX handles SIGTERM: once one process has received it, the same call
  of `poll` returns True in all of them. There other signals are passed on as
  SIGTERM. SIGHUP from a lost terminal stops nothing. What arrives within a
  second of the first signal repeats it.

  Attributes:
    requested: whether to stop, as of the last `poll`.
  """

  def __init__(self):
    self.requested = False
    self._first: signal.Signals | None = None
    self._received = False
    self._answered_at: float | None = None

  def __enter__(self) -> "StopSignal":
    self._is_alone = jax.process_count() == 1
    numbers = [signal.SIGINT, signal.SIGHUP]
    if self._is_alone:  # Else JAX listens, and tells all processes.
      numbers.append(signal.SIGTERM)
    self._answers = signals.Answers(numbers, self._answer, self._handle)
    return self

  def __exit__(self, *_: object) -> None:
    self._answers.close()

  @property
  def number(self) -> signal.Signals:
    """The first signal that asked to stop; SIGTERM if it came elsewhere."""
    return self._first or signal.SIGTERM

  def poll(self) -> bool:
    """Whether to stop; all processes must call it equally often."""
    if jax.process_count() > 1:
      reached = multihost_utils.reached_preemption_sync_point(next(_POLLS))
      self._received = self._received or reached
    self.requested = self._received
    return self.requested

  def _handle(self, number: int, *_: object) -> None:
    if signals.asks_to_stop(number):
      self._first = self._first or signal.Signals(number)
      self._received |= self._is_alone

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
      if not self._is_alone:
        os.kill(os.getpid(), signal.SIGTERM)
    elif (
      number == signal.SIGINT and now - self._answered_at > _ONE_REQUEST_SECONDS
    ):
      signals.end(
        "interrupted twice; the same command continues from the last complete "
        "checkpoint."
      )
