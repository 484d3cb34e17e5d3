"""The metrics of a run: what trackers keep, and a progress line.

Only the first process writes. On resuming, lines of `metrics.jsonl` after the
restored step are dropped, because the run writes them again.
"""

import datetime
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import jax
from absl import logging

from transformer_xl import storage
from transformer_xl.workdir import chosen_tracker
from transformer_xl.workdir import tracker as tracker_lib

FILE = "metrics.jsonl"  # In a workdir.
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
    self, record: tracker_lib.Record, tokens_per_update: float
  ) -> None:
    """Logs a training record with the time that remains."""
    step = record["step"]
    speed = record["tokens_per_second"]
    loss = f"{record['loss']:.4f}" if "loss" in record else "none"
    text = (
      f"step {step}/{self._num_steps}  loss {loss}"
      f"  lr {record['learning_rate']:.2e}"
      f"  gradient norm {record['gradient_norm']:.3f}"
    )
    if speed is not None:
      tokens_left = (self._num_steps - step) * tokens_per_update
      left = datetime.timedelta(seconds=round(tokens_left / speed))
      text += f"  {speed:.0f} tokens/s  {left} left"
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
  if not os.path.exists(path):
    return
  with open(path, "rb") as file:
    for line in file:
      try:
        value = json.loads(line)
      except (ValueError, RecursionError):
        continue
      if isinstance(value, dict):
        yield value


def _drop_after(path: str, step: int, *, is_evaluated: bool) -> None:
  """Keeps whole lines up to a step; a kill may have left half a line."""
  if not os.path.exists(path):
    return
  kept = []
  with open(path, "rb") as file:
    for line in file:
      try:
        text = line.decode("utf-8").rstrip("\n")
        record = json.loads(text)
        owed = record["step"] == step and "split" in record
        if record["step"] <= step and (is_evaluated or not owed):
          kept.append(f"{text}\n")
      except (ValueError, LookupError, TypeError, RecursionError):
        continue
  storage.write_text(path, "".join(kept))


def _without_links(path: str, flags: int) -> int:
  """Opens a file for `open`, but refuses a link, which could lead anywhere."""
  return os.open(path, flags | os.O_NOFOLLOW, 0o666)
