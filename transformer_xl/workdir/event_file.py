"""TensorBoard's event files."""

import os
import time

from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2


class EventFile:
  """A new file of TensorBoard scalars, written in the calling thread.

  The writers of the library have a thread of their own, which dies if the disk
  is full or the clock is set back by weeks; the run would then wait forever.
  """

  def __init__(self, folder: str, *, step: int):
    """Opens the file; TensorBoard hides events of older files after `step`."""
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
