"""Training accounts for all of its time."""

import re
import shutil
import time

import pytest

from tests import corpus
from tests.analysis import runs
from transformer_xl.training import loop
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log


def test_a_run_logs_and_records_its_time(data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  assert loop.train(corpus.config(data_dir), str(tmp_path))
  (line,) = re.findall(r"Time of the run: (.*)\.$", caplog.text, re.MULTILINE)
  shares = [float(share) for share in re.findall(r"([\d.]+)%", line)]
  assert sum(shares) == pytest.approx(100, abs=1)
  assert "compiling" in line
  records = goodput.read(str(tmp_path))
  assert [record.step for record in records] == [4, 8, 12]
  assert [record.is_last for record in records] == [False, False, True]
  for record in records:
    for activity in ("updates", "starting", "compiling", "saving"):
      assert record.seconds[activity] > 0
    assert record.seconds["evaluating"] == 0
    assert f"step {record.step}  saving  updates " in caplog.text


@pytest.mark.rest
def test_a_killed_run_loses_the_time_since_its_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  """The kill leaves the record of a checkpoint that is never complete."""
  write = metrics_log.Writer.write

  def killed(self, record):
    if record["step"] == 10:
      raise KeyboardInterrupt
    write(self, record)

  config = corpus.config(data_dir)
  with monkeypatch.context() as patch:
    patch.setattr(metrics_log.Writer, "write", killed)
    with pytest.raises(KeyboardInterrupt):
      loop.train(config, str(tmp_path))
  first, second = goodput.read(str(tmp_path))
  assert second.step == 8
  shutil.rmtree(tmp_path / "checkpoints" / "8")
  before = time.time()
  assert loop.train(config, str(tmp_path))
  *_, again, last = goodput.read(str(tmp_path))
  lost = last.seconds["lost to restarts"]
  assert before - first.saved_at < lost < again.saved_at - first.saved_at
  assert again.seconds["lost to restarts"] == lost
  assert again.step == 8
  assert again.seconds["compiling"] > first.seconds["compiling"]


@pytest.mark.rest
def test_the_first_evaluation_of_a_fine_tuned_run_is_no_update(
  data_dir, tmp_path
):
  runs.write(data_dir, tmp_path / "source")
  updates = {
    "train.init_from": str(tmp_path / "source"),
    "train.num_steps": 4,
    "train.eval_every_steps": 4,
    "checkpoint.every_steps": 2,
  }
  config = corpus.config(data_dir, **updates)
  assert loop.train(config, str(tmp_path / "run"))
  first, last = goodput.read(str(tmp_path / "run"))
  assert first.step == 2  # Only that of step 0 has been made.
  assert 0 < first.seconds["evaluating"] < last.seconds["evaluating"]
