"""The metrics of a run: what trackers keep, and a progress line.

Only the first process writes. On resuming, lines of `metrics.jsonl` after the
restored step are dropped, because the run writes them again.
"""

import datetime
import json
import math
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import jax
from absl import logging

from transformer_xl import storage
from transformer_xl.workdir import chosen_tracker
from transformer_xl.workdir import tracker as tracker_lib

FILE = "metrics.jsonl"  # In a workdir.
_STEP = re.compile(rb'\{"step": (\d{1,18})[,}]')  # The start of most lines.
_BLOCK = 1 << 16
Json = dict[str, Any]  # A JSON object.


class JsonLines:
  """`metrics.jsonl`, a line for each record."""

  def __init__(self, workdir: str, *, step: int, is_evaluated: bool = True):
    """Opens the file and drops lines after `step`.

    Unless `is_evaluated`, the evaluation of `step` is dropped as well: a run
    that was killed while it made up for one writes that line again.
    """
    self._path = os.path.join(storage.local(workdir), FILE)
    _drop_after(self._path, step, is_evaluated=is_evaluated)
    self._file = self._open()

  def record(self, record: tracker_lib.Record) -> None:
    """Writes a line; into a new file if somebody has removed the old one."""
    if not self._is_there():
      logging.warning(
        "%s is gone; a new one has the lines from step %s on.",
        self._path,
        record.get("step"),
      )
      self._file.close()
      self._file = self._open()
    self._file.write(to_json(record) + "\n")
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _open(self) -> TextIO:
    return open(self._path, "a", encoding="utf-8", opener=_without_links)

  def _is_there(self) -> bool:
    """Whether the path still leads to the file that is open."""
    try:
      found = os.stat(self._path)
    except FileNotFoundError:
      return False
    return os.path.samestat(os.fstat(self._file.fileno()), found)


class Writer:
  """Reports metrics of training and evaluation to all trackers."""

  def __init__(
    self,
    workdir: str,
    *,
    step: int,
    num_steps: int,
    is_evaluated: bool = True,
    tracker: str = "none",
  ):
    """Opens the trackers of a run that is at `step` of `num_steps`.

    `tracker` is the value of `train.tracker`: the one beside JSON lines and
    TensorBoard.
    """
    self._num_steps = num_steps
    self._trackers: list[tracker_lib.Tracker] = []
    if jax.process_index() != 0:
      return
    # Late: only training writes events, and tensorboardX imports PyTorch where
    # it is installed.
    from transformer_xl.workdir import event_file

    lines = JsonLines(workdir, step=step, is_evaluated=is_evaluated)
    events = event_file.EventFile(storage.local(workdir), step=step)
    self._trackers = [lines, events]
    factory = chosen_tracker.find(tracker)
    if factory is not None:
      chosen = chosen_tracker.InBackground(
        factory,
        path=tracker,
        workdir=storage.local(workdir),
        name=os.path.basename(storage.absolute(workdir)),
      )
      self._trackers.append(chosen)

  def write(self, record: tracker_lib.Record) -> None:
    """Reports a record."""
    for tracker in self._trackers:
      tracker.record(record)

  def progress(
    self, record: tracker_lib.Record, seconds_left: float | None
  ) -> None:
    """Logs a training record with the time that remains, if it is known."""
    step = record["step"]
    speed = record["tokens_per_second"]
    loss = f"{record['loss']:.4f}" if "loss" in record else "none"
    text = (
      f"step {step}/{self._num_steps}  loss {loss}"
      f"  lr {record['learning_rate']:.2e}"
      f"  gradient norm {record['gradient_norm']:.3f}"
    )
    if speed is not None:
      text += f"  {speed:.0f} tokens/s"
    if seconds_left is not None:
      left = datetime.timedelta(seconds=round(seconds_left))
      text += f"  {left} left"
    if record["mfu"] is not None:
      text += f"  mfu {record['mfu']:.1%}"
    logging.info("%s", text)

  def close(self) -> None:
    """Closes the trackers."""
    for tracker in self._trackers:
      tracker.close()


def finite(value: object) -> Any:
  """A value for JSON, which lacks infinities and NaN: they become null."""
  if isinstance(value, float) and not math.isfinite(value):
    return None
  if isinstance(value, dict):
    return {name: finite(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [finite(part) for part in value]
  return value


def to_json(value: object, *, indent: int | None = None) -> str:
  """JSON that every program reads, also after divergence."""
  return json.dumps(finite(value), indent=indent, allow_nan=False)


def write_json(workdir: str, name: str, value: object) -> None:
  """Writes a file of a workdir completely or not at all.

  Only the first process writes, as in `append_lines`.
  """
  if jax.process_index() != 0:
    return
  path = os.path.join(storage.local(workdir), name)
  storage.write_text(path, to_json(value, indent=2) + "\n")
  logging.info("Wrote %s.", os.path.join(workdir, name))


def write_json_list(workdir: str, name: str, values: Iterable[object]) -> None:
  """Writes a list as `write_json` does, a line for each value.

  Values that are made one after the other need not be in memory together. All
  processes make them.
  """
  path = os.path.join(storage.local(workdir), name)
  if jax.process_index() != 0:
    for _ in values:
      pass
    return
  with storage.replacing(path) as file:
    separator = b"[\n"
    for value in values:
      file.write(separator + to_json(value).encode())
      separator = b",\n"
    file.write(b"[]\n" if separator == b"[\n" else b"\n]\n")
  logging.info("Wrote %s.", os.path.join(workdir, name))


def append_lines(workdir: str, name: str, records: Sequence[object]) -> None:
  """Adds a line of JSON to a file of a workdir for each record.

  All lines are one write, so calls at the same time do not mix. Half a line
  that a full disk has left is ended first, and damages no line of this call.
  """
  if jax.process_index() != 0:
    return
  path = os.path.join(storage.local(workdir), name)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  content = "".join(to_json(record) + "\n" for record in records).encode()
  with open(path, "a+b", 0, opener=_without_links) as file:
    size = file.seek(0, os.SEEK_END)
    if size:
      file.seek(size - 1)
      content = content if file.read(1) == b"\n" else b"\n" + content
    file.write(content)


def read_lines(path: str | os.PathLike[str]) -> Iterator[Json]:
  """The objects in a file that has one on each line; none without the file.

  Damaged lines are left out: a kill or a full disk may have cut one short, or
  it is still being written.
  """
  for _, value in read_places(path):
    yield value


def read_places(
  path: str | os.PathLike[str],
) -> Iterator[tuple[int, Json]]:
  """The same objects, each with the byte at which its line starts."""
  if not os.path.exists(path):
    return
  start = 0
  with open(path, "rb") as file:
    for line in file:
      value = _parsed(line)
      if value is not None:
        yield start, value
      start += len(line)


def read_lines_back(path: str | os.PathLike[str]) -> Iterator[Json]:
  """The same objects, the last one first; only what is asked for is read."""
  if not os.path.exists(path):
    return
  with open(path, "rb") as file:
    place = file.seek(0, os.SEEK_END)
    rest = b""  # The end of a line that begins in an earlier block.
    while place:
      size = min(_BLOCK, place)
      place -= size
      file.seek(place)
      rest, *lines = (file.read(size) + rest).split(b"\n")
      for line in reversed(lines):
        value = _parsed(line)
        if value is not None:
          yield value
    value = _parsed(rest)
    if value is not None:
      yield value


def has(path: str | os.PathLike[str], field: str) -> bool:
  """Whether a line of such a file has a field; no line is parsed."""
  if not os.path.exists(path) or not os.path.getsize(path):
    return False
  with (
    open(path, "rb") as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
  ):
    return content.find(f'"{field}": '.encode()) >= 0


def _parsed(line: bytes) -> Json | None:
  """The object in a line; None if the line is damaged, or something else."""
  try:
    value = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None


def _drop_after(path: str, step: int, *, is_evaluated: bool) -> None:
  """Keeps whole lines up to a step; a kill may have left half a line.

  Lines that begin with an earlier step, as nearly all do, are not parsed, and a
  file of which only the end goes is cut, not written again.
  """
  if not os.path.exists(path):
    return

  def stays(line: bytes) -> bool:
    begins = _STEP.match(line)
    if begins is not None and int(begins[1]) != step and line[-2:] == b"}\n":
      return int(begins[1]) < step
    try:
      record = json.loads(line.decode("utf-8"))
      owed = record["step"] == step and "split" in record
      return record["step"] <= step and (is_evaluated or not owed)
    except (ValueError, LookupError, TypeError, RecursionError):
      return False

  kept: list[tuple[int, int]] = []  # From where to where lines stay.
  end = 0
  with open(path, "rb") as file:
    for line in file:
      start, end = end, end + len(line)
      if not stays(line):
        continue
      if kept and kept[-1][1] == start:
        kept[-1] = (kept[-1][0], end)
      else:
        kept.append((start, end))
    stop = kept[-1][1] if kept else 0
    is_start = kept in ([], [(0, stop)])
    content = b""
    if not is_start:  # A damaged line in between, or a rewind.
      for start, end in kept:
        file.seek(start)
        content += file.read(end - start)
  if not is_start:
    content += b"" if content.endswith(b"\n") else b"\n"
    storage.write_bytes(path, content)
    return
  with open(path, "r+b", opener=_without_links) as whole:
    whole.truncate(stop)
    whole.seek(max(stop - 1, 0))
    if stop and whole.read(1) != b"\n":
      whole.write(b"\n")
    whole.flush()
    os.fsync(whole.fileno())


def _without_links(path: str, flags: int) -> int:
  """Opens a file for `open`, but refuses a link, which could lead anywhere."""
  return os.open(path, flags | os.O_NOFOLLOW, 0o666)
