"""A line on standard error that says how far a long pass has come."""

import sys
import time


class Progress:
  """Counts bytes of text; shows at most one line in `interval` seconds."""

  def __init__(self, label: str):
    self._label = label
    self._done = 0
    self._start = time.monotonic()
    self._shown = self._start
    # A terminal's line is overwritten; a log file gets few lines.
    self._interval = 0.5 if sys.stderr.isatty() else 10.0

  def add(self, num_bytes: int) -> None:
    """Counts text that has been dealt with."""
    self._done += num_bytes
    if time.monotonic() - self._shown >= self._interval:
      self._show(end="\r" if sys.stderr.isatty() else "\n")

  def close(self) -> None:
    """Shows the final count."""
    self._show(end="\n")

  def _show(self, *, end: str) -> None:
    self._shown = time.monotonic()
    done = self._done / 1e6
    rate = done / max(self._shown - self._start, 1e-9)
    line = f"{self._label}: {done:.1f} MB, {rate:.1f} MB/s"
    print(f"{line:<60}", end=end, file=sys.stderr, flush=True)
