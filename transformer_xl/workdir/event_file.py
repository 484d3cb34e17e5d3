"""TensorBoard's event files."""

import os
import time

from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2

from transformer_xl.workdir import tracker


class EventFile:
  """A new file of TensorBoard scalars, written in the calling thread.

  The writers of the library have a thread of their own, which dies if the disk
  is full or the clock is set back by weeks; the run would then wait forever.
  TensorBoard hides events of older files after `step`.
  """

  def __init__(self, folder: str, *, step: int):
    os.makedirs(folder, exist_ok=True)
    self._file = event_file_writer.EventsWriter(os.path.join(folder, "events"))
    self.close = self._file.close
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(event_pb2.Event(step=step + 1, session_log=start))

  def record(self, record: tracker.Record) -> None:
    """Adds the numbers of a record."""
    for name, value in tracker.scalars(record).items():
      scalar = summary.scalar(name, value)
      self._write(event_pb2.Event(step=record["step"], summary=scalar))
    self._file.flush()

  def _write(self, event: event_pb2.Event) -> None:
    event.wall_time = time.time()
    self._file.write_event(event)
