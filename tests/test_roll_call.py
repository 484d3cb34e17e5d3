"""Where a process is killed, the others say so and blame no file."""

import shutil

import pytest

from tests import own_process
from tests.workdir import test_checkpoint
from transformer_xl import errors
from transformer_xl import roll_call
from transformer_xl.check import finding
from transformer_xl.config import schema
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import trained_model

GONE = (
  r"process 1 is gone \(ValueError: not what was saved in a second line\); the "
  "same command in all processes continues from the last whole checkpoint."
)


@pytest.mark.slow
def test_a_process_that_was_killed_is_missed_and_one_that_left_is_not(tmp_path):
  first, *others = own_process.result("missing", tmp_path)
  kept = "ValueError: not what was saved\nin a second line"
  assert [first[0], *others] == [kept, [kept], [kept]]
  text, seconds = first[1:]
  assert text == "LostProcessError: " + GONE.replace("\\", "")
  assert 3.0 < seconds < 6.0


@pytest.fixture
def lost(monkeypatch):
  """Process 1 is gone."""
  monkeypatch.setattr(roll_call, "missing", lambda: [1])


def fail(*_, **__):
  raise ValueError("not what was saved\nin a second line")


def restore_params(workdir):
  trained_model.restore_params(
    str(workdir),
    which="latest",
    average=False,
    target=test_checkpoint.make_state(0).params,
  )


def restore_run(workdir):
  test_checkpoint.restore(workdir, test_checkpoint.make_state(0))


@pytest.mark.parametrize("read", [restore_params, restore_run])
def test_a_checkpoint_is_not_blamed_for_a_process_that_is_gone(
  tmp_path, monkeypatch, lost, read
):
  test_checkpoint.save(tmp_path, [test_checkpoint.make_state(3)])
  whole = tmp_path / "whole"
  shutil.copytree(tmp_path / "checkpoints", whole)
  monkeypatch.setattr(checkpoint_items, "read_metadata", fail)
  with pytest.raises(errors.LostProcessError, match=GONE):
    read(tmp_path)
  assert not (tmp_path / "damaged").exists()
  kept = {path.relative_to(whole) for path in whole.rglob("*")}
  checkpoints = tmp_path / "checkpoints"
  assert {path.relative_to(checkpoints) for path in checkpoints.rglob("*")} >= (
    kept
  )


def test_a_bucket_is_not_blamed_for_a_process_that_is_gone(lost):
  with (
    pytest.raises(errors.LostProcessError, match=GONE),
    checkpoint_items.of_bucket("write to", "gs://bucket/run"),
  ):
    fail()


def test_a_check_is_not_failed_by_a_process_that_is_gone(lost):
  with pytest.raises(errors.LostProcessError, match=GONE):
    finding.attempt("part", "case", fail)


def test_a_mistake_and_a_bug_stay_what_they_are(monkeypatch, lost):
  with (
    pytest.raises(errors.UserError, match="a mistake"),
    roll_call.on_failure(),
  ):
    raise errors.UserError("a mistake")
  monkeypatch.setattr(roll_call, "missing", list)
  with (
    pytest.raises(ValueError, match="not what was saved"),
    roll_call.on_failure(),
  ):
    fail()


def test_a_save_is_not_waited_for_without_a_process_that_writes_a_part(
  tmp_path, monkeypatch, lost
):
  closed = []
  close = checkpoint.Checkpoints.close

  def noted(self):
    closed.append(True)
    close(self)

  monkeypatch.setattr(checkpoint.Checkpoints, "close", noted)
  options = schema.CheckpointConfig(0, 0, 1)
  with (
    pytest.raises(errors.LostProcessError),
    checkpoint.Checkpoints(str(tmp_path), options),
    roll_call.on_failure(),
  ):
    fail()
  assert not closed
  with (
    pytest.raises(KeyError),
    checkpoint.Checkpoints(str(tmp_path), options),
  ):
    raise KeyError("a bug")
  assert closed
