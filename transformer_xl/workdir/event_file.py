"""TensorBoard's scalars, written in the thread that has them.

The usual writer has a thread of its own, which dies of a full disk or a clock
that is set back by weeks; the run then waits for it without end.
"""

import os
import time

from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2


class EventFile:
  """One new file of events in a folder."""

  def __init__(self, folder: str, *, step: int):
    """Opens it.

    Args:
      folder: of the run.
      step: completed updates; TensorBoard hides what older files have beyond.
    """
    os.makedirs(folder, exist_ok=True)
    self._file = event_file_writer.EventsWriter(os.path.join(folder, "events"))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(event_pb2.Event(step=step + 1, session_log=start))

  def add(self, name: str, value: float, step: int) -> None:
    """Adds one number."""
    scalar = summary.scalar(name, value)
    self._write(event_pb2.Event(step=step, summary=scalar))

  def flush(self) -> None:
    """Hands what was added to the operating system."""
    self._file.flush()

  def close(self) -> None:
    """Writes what is left."""
    self._file.close()

  def _write(self, event: event_pb2.Event) -> None:
    event.wall_time = time.time()
    self._file.write_event(event)
