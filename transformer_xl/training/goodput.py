"""Where the time of a run goes, over all its restarts: `goodput.jsonl`."""

import contextlib
import json
import os
import time
from collections.abc import Iterator

from transformer_xl import storage
from transformer_xl.workdir import metrics_log

# What is not an update. A run that is stopped loses the time from its last
# checkpoint to its next start.
ACTIVITIES = (
  *("starting", "compiling", "waiting for data", "evaluating", "saving"),
  *("profiling", "lost to restarts"),
)
_FILE = "goodput.jsonl"


class Goodput:
  """Seconds by activity; what remains of the time are updates."""

  def __init__(self, workdir: str):
    """Continues with the seconds of the last checkpoint, if there is one."""
    self._workdir = workdir
    path = os.path.join(storage.local(workdir), _FILE)
    self._begin, last = time.time(), _last_record(path)
    self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
    self._before = 0.0  # Seconds of the run until now.
    if last is not None:
      lost = max(0.0, self._begin - last["saved_at"])
      self._seconds |= last["seconds"]
      self._seconds["lost to restarts"] += lost
      self._before = last["total_seconds"] + lost

  @contextlib.contextmanager
  def spent(self, activity: str) -> Iterator[None]:
    """Adds the time inside to an activity."""
    start = time.perf_counter()
    try:
      yield
    finally:
      self.add(activity, time.perf_counter() - start)

  def add(self, activity: str, seconds: float) -> None:
    """Adds seconds to an activity."""
    self._seconds[activity] += seconds

  def record(self, step: int) -> None:
    """Adds a line; called with each checkpoint, after `step` updates."""
    line = {
      "step": step,
      "saved_at": time.time(),
      "total_seconds": self._total(),
      "seconds": self._seconds,
    }
    metrics_log.append_lines(self._workdir, _FILE, [line])

  def __str__(self) -> str:
    total = max(self._total(), 1e-9)
    updates = total - sum(self._seconds.values())
    shares = {"updates": updates} | self._seconds
    parts = (
      f"{name} {seconds / total:.1%}"
      for name, seconds in shares.items()
      if name == "updates" or seconds / total >= 0.0005
    )
    return f"{', '.join(parts)} of {total:.0f} s"

  def _total(self) -> float:
    return self._before + time.time() - self._begin


def _last_record(path: str) -> dict | None:
  """The last whole line; a kill may have left half of one."""
  if not os.path.exists(path):
    return None
  with open(path, encoding="utf-8", errors="replace") as file:
    for line in reversed(file.read().splitlines()):
      with contextlib.suppress(
        *(ValueError, LookupError, TypeError, AttributeError)
      ):
        record = json.loads(line)
        known = record["seconds"].keys() & {*ACTIVITIES}
        seconds = {name: float(record["seconds"][name]) for name in known}
        times = {k: float(record[k]) for k in ("saved_at", "total_seconds")}
        return {"seconds": seconds, **times}
  return None
