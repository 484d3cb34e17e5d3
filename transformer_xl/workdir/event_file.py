"""TensorBoard's event files."""

import os
import time
from typing import Any

from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2


class EventFile:
  """A new file of TensorBoard scalars, written in the calling thread.

  The writers of the library have a thread of their own, which dies if the disk
  is full or the clock is set back by weeks; the run would then wait forever.
  TensorBoard hides events of older files after `step`.
  """

  def __init__(self, folder: str, *, step: int):
    os.makedirs(folder, exist_ok=True)
    self._file = event_file_writer.EventsWriter(os.path.join(folder, "events"))
    self.flush, self.close = self._file.flush, self._file.close
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=step + 1, session_log=start)

  def add(self, name: str, value: float, step: int) -> None:
    """Adds one number."""
    self._write(step=step, summary=summary.scalar(name, value))

  def _write(self, **content: Any) -> None:
    event = event_pb2.Event(wall_time=time.time(), **content)
    self._file.write_event(event)
