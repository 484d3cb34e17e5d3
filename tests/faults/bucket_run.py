"""A run in an emulated bucket, held against the uninterrupted one on disk."""

from tests import emulator
from tests.faults import victim
from transformer_xl.workdir import checkpoint_items

UPDATES = {
  **victim.UPDATES,
  "train.num_steps": 24,
  "train.eval_every_steps": 8,
}
GOES_ON = "goes on"
ENDS = "ends in one line; the same command resumes"


class BucketRun:
  """Data and a workdir in a bucket; `bench` has the same run on disk."""

  def __init__(self, bench, bucket, folder):
    self.bench, self.address, self._folder = bench, f"{bucket}/run", folder
    emulator.upload(bench.data_dir, f"{bucket}/data")
    self.flags = (
      f"--workdir={self.address}",
      f"--config.data.dir={bucket}/data",
    )

  def start(self, *more):
    """Starts the command; what all calls say is in one file."""
    return self.bench.start(self._folder / "run", *self.flags, *more)

  def start_to(self, stage, occurrence=1):
    """Starts the command, and waits until it enters a stage."""
    process = self.start()
    assert process.wait_for(stage, occurrence), process.says()
    return process

  def fetched(self):
    """A copy on disk of all that is in the bucket."""
    return emulator.download(self.address, self._folder / "copy")

  def steps(self):
    """The checkpoints in the bucket that are completely written."""
    folder = self.fetched() / checkpoint_items.DIRECTORY
    return sorted(int(p.parent.name) for p in folder.glob("*/commit_success*"))

  def finish(self, process):
    """Waits for its end, and for that of the same command if need be.

    Returns:
      GOES_ON or ENDS.
    """
    if process.end() == 0:
      self.assert_whole()
      return GOES_ON
    assert_one_line(process)
    self.assert_continues()
    return ENDS

  def assert_continues(self):
    """The same command resumes from the newest checkpoint, as if unharmed."""
    before = victim.lines_so_far(self.fetched())
    assert before == self.bench.lines[: len(before)]
    after = max(self.steps(), default=0)
    process = self.start()
    assert process.end() == 0, process.says()
    expected = f"Resuming after step {after}." if after else "Starting with"
    assert expected in process.says(), process.says()
    self.assert_whole()

  def assert_whole(self):
    """Log and checkpoint equal those on disk, and no lock is left."""
    copy = self.fetched()
    self.bench.assert_whole(copy)
    assert not (copy / ".lock").exists()


def assert_one_line(process, says=""):
  """It ended with one line for people, and no traceback."""
  assert process.end() in (1, 2), process.says()
  assert "Traceback" not in process.says(), process.says()
  *_, last = process.says().splitlines()
  assert last.startswith("error: "), process.says()
  assert says in last
