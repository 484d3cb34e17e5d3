"""What a run reports its records to, besides the log for people.

A record is a dictionary with `step` and numbers. Those of evaluations have a
`split`; those of divergence are described in `training/divergence.py`.
"""

from typing import Any, Protocol


class Tracker(Protocol):
  """Keeps the records of a run, from one step on."""

  def record(self, record: dict[str, Any]) -> None:
    """Keeps one record."""

  def close(self) -> None:
    """Completes what is kept."""


def scalars(record: dict[str, Any]) -> dict[str, float]:
  """The numbers of a record, as `train/loss` or `valid/nll`."""
  prefix = f"{record.get('split', 'train')}/"
  return {
    prefix + name: value
    for name, value in record.items()
    if isinstance(value, int | float) and name != "step"
  }
