"""Requests to stop, as schedulers send them before they reclaim a machine."""

import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils

INTERRUPTED = 130  # The exit status after Ctrl-C, by convention of shells.
_INTERRUPTED_TWICE = (
  "error: interrupted twice; the same command continues from the last complete "
  "checkpoint.\n"
)


class StopSignal:
  """Remembers SIGTERM and the first SIGINT; a second SIGINT ends the process.

  Python runs signal handlers between its own instructions, so not while it
  waits for the devices or the compiler. A thread therefore answers at once.

  A context manager that restores the previous handlers at its end. With several
  processes JAX handles SIGTERM: once one process has received it, the same call
  of `poll` returns True in all of them.
  """

  def __init__(self):
    self.requested = False  # As of the last `poll`.
    self._received, self._polls = False, 0
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> "StopSignal":
    if jax.process_count() == 1:
      self._arrivals, self._wakeup = socket.socketpair()
      self._wakeup.setblocking(False)
      self._previous_wakeup = signal.set_wakeup_fd(
        self._wakeup.fileno(), warn_on_full_buffer=False
      )
      self._thread = threading.Thread(target=self._answer, daemon=True)
      self._thread.start()
      for number in (signal.SIGTERM, signal.SIGINT):
        self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *_: object) -> None:
    if not self._previous:
      return
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._previous_wakeup)
    self._wakeup.close()  # Which ends the thread.
    self._thread.join()
    self._arrivals.close()

  def poll(self) -> bool:
    """Whether to stop; all processes must call it equally often."""
    if jax.process_count() > 1:
      self._polls += 1
      reached = multihost_utils.reached_preemption_sync_point(self._polls)
      self._received = self._received or reached
    self.requested = self._received
    return self.requested

  def _handle(self, number: int, _: FrameType | None) -> None:
    del number
    self._received = True

  def _answer(self) -> None:
    """Says what follows, for each signal as it arrives."""
    answered = False
    while arrived := self._arrivals.recv(1):
      number = arrived[0]
      if number not in (signal.SIGTERM, signal.SIGINT):
        continue
      if not answered:
        logging.warning(
          "%s: stopping after this chunk, with a checkpoint. Ctrl-C ends at "
          "once and keeps what is saved.",
          signal.Signals(number).name,
        )
      elif number == signal.SIGINT:
        os.write(2, _INTERRUPTED_TWICE.encode())
        os._exit(INTERRUPTED)  # A half-written checkpoint is dropped later.
      answered = True
