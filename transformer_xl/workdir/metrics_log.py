"""The metrics of a run: `metrics.jsonl`, TensorBoard events, a progress line.

Only the first process writes. On resuming, lines after the restored step are
dropped, because the run writes them again.
"""

import datetime
import json
import os
from typing import Any

import jax
from absl import logging


class Writer:
  """Writes metrics of training and evaluation."""

  def __init__(self, workdir: str, *, step: int, num_steps: int):
    """Opens the files.

    Args:
      workdir: gets `metrics.jsonl` and event files.
      step: completed updates; lines after it are dropped.
      num_steps: of the whole run.
    """
    self._num_steps = num_steps
    self._is_first = jax.process_index() == 0
    if not self._is_first:
      return
    path = os.path.join(workdir, "metrics.jsonl")
    _drop_after(path, step)
    self._lines = open(path, "a", encoding="utf-8")  # noqa: SIM115
    # Late: only training writes events, and tensorboardX imports PyTorch where
    # it is installed.
    from transformer_xl.workdir import event_file

    self._events = event_file.EventFile(workdir, step=step)

  def write(self, record: dict[str, Any]) -> None:
    """Writes a line; its numbers become scalars at `step`."""
    if not self._is_first:
      return
    self._lines.write(json.dumps(record) + "\n")
    self._lines.flush()
    prefix = f"{record['split']}/" if "split" in record else "train/"
    for name, value in record.items():
      if isinstance(value, int | float) and name != "step":
        self._events.add(prefix + name, value, record["step"])
    self._events.flush()

  def progress(self, record: dict[str, Any]) -> None:
    """Logs a training record with the time that remains."""
    step, speed = record["step"], record["tokens_per_second"]
    text = (
      f"step {step}/{self._num_steps}  loss {record['loss']:.4f}"
      f"  lr {record['learning_rate']:.2e}"
      f"  gradient norm {record['gradient_norm']:.3f}"
    )
    if speed is not None:
      tokens_left = (self._num_steps - step) * record["tokens"] / step
      left = datetime.timedelta(seconds=round(tokens_left / speed))
      text += f"  {speed:.0f} tokens/s  {left} left"
    if record["mfu"] is not None:
      text += f"  mfu {record['mfu']:.1%}"
    logging.info("%s", text)

  def close(self) -> None:
    """Closes the files."""
    if self._is_first:
      self._lines.close()
      self._events.close()


def write_json(path: str, value: Any) -> None:
  """Writes a file completely or not at all; only in the first process."""
  if jax.process_index() != 0:
    return
  os.makedirs(os.path.dirname(path), exist_ok=True)
  temporary = f"{path}.tmp"
  with open(temporary, "w", encoding="utf-8") as file:
    json.dump(value, file, indent=2)
    file.write("\n")
  os.replace(temporary, path)
  logging.info("Wrote %s.", path)


def _drop_after(path: str, step: int) -> None:
  """Keeps whole lines up to a step; a kill may have left half a line."""
  if not os.path.exists(path):
    return
  kept = []
  with open(path, "rb") as file:
    for line in file:
      try:
        is_kept = json.loads(line.decode("utf-8"))["step"] <= step
      except (ValueError, LookupError, TypeError, RecursionError):
        continue
      if is_kept:
        kept.append(line.decode("utf-8").rstrip("\n") + "\n")
  temporary = f"{path}.tmp"
  with open(temporary, "w", encoding="utf-8") as file:
    file.writelines(kept)
  os.replace(temporary, path)
