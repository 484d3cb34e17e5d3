"""Where the time of a run goes, over all its restarts: `goodput.jsonl`."""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from transformer_xl import storage
from transformer_xl.workdir import metrics_log

FILE = "goodput.jsonl"  # In the workdir.
UPDATES = "updates"
LOST = "lost to restarts"
OVERHEAD = (
  "starting",
  "compiling",
  "waiting for data",
  "evaluating",
  "saving",
  "profiling",
  LOST,
)
ACTIVITIES = (UPDATES, *OVERHEAD)


class Record(NamedTuple):
  """A line of the file: the run until the checkpoint of a step."""

  step: int
  saved_at: float  # Seconds since 1970.
  is_last: bool  # The run had reached `train.num_steps`.
  seconds: dict[str, float]  # By activity, in the order of `ACTIVITIES`.


class Goodput:
  """A stopwatch that is always in one activity, at first in "starting"."""

  def __init__(self, workdir: str):
    """Starts the stopwatch."""
    self._workdir = workdir
    self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
    self._activity = "starting"
    self._began = time.time()
    self._settled = time.perf_counter()

  def started(self, step: int) -> None:
    """Ends "starting"; continues with the seconds of the checkpoint of `step`.

    The time from that checkpoint to this start was lost, unless it was the
    last one of a run that continues with more steps.
    """
    self._settle()
    self._activity = UPDATES
    # A kill may have prevented the checkpoint that a later record announces.
    found = [one for one in read(self._workdir) if one.step <= step]
    if not found:
      return
    for activity, seconds in found[-1].seconds.items():
      self._seconds[activity] += seconds
    if not found[-1].is_last:
      self._seconds[LOST] += max(0.0, self._began - found[-1].saved_at)

  @contextlib.contextmanager
  def spent(self, activity: str) -> Iterator[None]:
    """Counts the time inside as that of an activity."""
    self._settle()
    outer = self._activity
    self._activity = activity
    try:
      yield
    finally:
      self._settle()
      self._activity = outer

  def add(self, activity: str, seconds: float) -> None:
    """Counts some of the time just passed as that of another activity."""
    self._seconds[activity] += seconds
    self._seconds[self._activity] -= seconds

  def record(self, step: int, *, is_last: bool = False) -> None:
    """Adds a line; called with each checkpoint, after `step` updates."""
    self._settle()
    line = {
      "step": step,
      "is_last": is_last,
      "saved_at": time.time(),
      "total_seconds": sum(self._seconds.values()),
      "seconds": {name: self._seconds[name] for name in OVERHEAD},
    }
    metrics_log.append_lines(self._workdir, FILE, [line])

  def __str__(self) -> str:
    self._settle()
    return described(self._seconds)

  def _settle(self) -> None:
    now = time.perf_counter()
    self._seconds[self._activity] += now - self._settled
    self._settled = now


def described(seconds: Mapping[str, float]) -> str:
  """The shares of activities; shares below 0.05 % are left out."""
  total = max(sum(seconds.values()), 1e-9)
  parts = (
    f"{name} {part / total:.1%}"
    for name, part in seconds.items()
    if name == UPDATES or part / total >= 0.0005
  )
  return f"{', '.join(parts)} of {total:.0f} s"


def duration(seconds: float) -> str:
  """A time in its two largest units, such as "3 min 9 s"."""
  if seconds < 9.95:
    return f"{seconds:.1f} s"
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  units = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
  first = next(index for index, (count, _) in enumerate(units) if count)
  parts = units[first : first + 2]
  return " ".join(f"{count} {unit}" for count, unit in parts if count)


def read(workdir: str) -> list[Record]:
  """The records of a run; lines that are damaged are left out."""
  path = os.path.join(storage.local(workdir), FILE)
  lines = metrics_log.read_lines(path)
  return [record for line in lines if (record := _parsed(line))]


def _parsed(fields: metrics_log.Json) -> Record | None:
  """A whole record; None if something is missing."""
  try:
    overhead = {name: float(fields["seconds"][name]) for name in OVERHEAD}
    total = float(fields["total_seconds"])
    updates = max(0.0, total - sum(overhead.values()))
    record = Record(
      int(fields["step"]),
      float(fields["saved_at"]),
      bool(fields["is_last"]),
      {UPDATES: updates, **overhead},
    )
  except (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
  ):
    return None
  numbers = (record.saved_at, total, *overhead.values())
  is_whole = all(0 <= number < math.inf for number in numbers)
  return record if is_whole else None
