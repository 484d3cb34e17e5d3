"""What a run reports its records to, besides the log for people.

A record is a dictionary with `step` and numbers. Those of evaluations have a
`split`; those of divergence are described in `training/divergence.py`.
"""

from typing import Any, Protocol

Record = dict[str, Any]


class Tracker(Protocol):
  """Keeps the records of a run, from one step on.

  A class that registers itself (`registry.trackers`) takes the workdir and, as
  `name`, the folder's last part.
  """

  def record(self, record: Record) -> None:
    """Keeps one record."""

  def close(self) -> None:
    """Completes what is kept."""


def scalars(record: Record) -> dict[str, float]:
  """The numbers of a record, as `train/loss` or `valid/nll`."""
  prefix = f"{record.get('split', 'train')}/"
  return {
    prefix + name: value
    for name, value in record.items()
    if isinstance(value, int | float) and name != "step"
  }
