"""Requests to stop, as schedulers send them before they reclaim a machine."""

import os
import signal

import jax
from absl import logging
from jax.experimental import multihost_utils

from transformer_xl import command_line


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT ends the process.

  A context manager that restores the previous handlers at its end. With several
  processes JAX handles SIGTERM: once one process has received it, the same call
  of `poll` returns True in all of them. There a SIGINT is passed on as SIGTERM.
  SIGHUP, as from a dropped connection, stops nothing.
  """

  def __init__(self):
    self.requested = False  # As of the last `poll`.
    self._received = False
    self._polls = 0
    self._answered = False

  def __enter__(self) -> "StopSignal":
    self._is_alone = jax.process_count() == 1
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    self._answers = command_line.Answers(
      numbers[: 2 + self._is_alone], self._answer, self._handle
    )
    return self

  def __exit__(self, *_: object) -> None:
    self._answers.close()

  def poll(self) -> bool:
    """Whether to stop; all processes must call it equally often."""
    if jax.process_count() > 1:
      self._polls += 1
      reached = multihost_utils.reached_preemption_sync_point(self._polls)
      self._received = self._received or reached
    self.requested = self._received
    return self.requested

  def _handle(self, number: int, *_: object) -> None:
    self._received |= self._is_alone and number != signal.SIGHUP

  def _answer(self, number: signal.Signals) -> None:
    """Tells the user what each signal leads to, as soon as it arrives."""
    if number == signal.SIGHUP:
      command_line.continue_without_terminal()
    elif not self._answered:
      self._answered = True
      logging.warning(
        "%s: stopping after this chunk, with a checkpoint. Ctrl-C ends at "
        "once and keeps what is saved.",
        number.name,
      )
      if not self._is_alone:
        os.kill(os.getpid(), signal.SIGTERM)
    elif number == signal.SIGINT:
      command_line.end(
        "interrupted twice; the same command continues from the last complete "
        "checkpoint."
      )
