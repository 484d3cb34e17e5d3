"""Where one process ends, the others say so and blame no file."""

import shutil
import signal

import pytest

from tests import own_process
from tests.workdir import test_checkpoint
from transformer_xl import errors
from transformer_xl.check import finding
from transformer_xl.config import schema
from transformer_xl.processes import others
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import params_reader

GONE = (
  "process 1 is gone; the same command in all processes continues from the "
  "last whole checkpoint."
)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
  """How processes end of which the second ends, by the way in which it does."""
  return own_process.result("ended", tmp_path_factory.mktemp("ended"))


@pytest.mark.slow
def test_a_process_that_is_killed_is_named_by_those_that_fail_and_that_wait(
  ends,
):
  error, *statuses, last = ends["killed"]
  assert error == f"LostProcessError: {GONE}"
  assert statuses == [-signal.SIGKILL, 1]
  assert last == f"error: {GONE}"


@pytest.mark.slow
def test_a_mistake_of_one_process_ends_all_with_its_line_and_status(ends):
  error, *statuses, last = ends["mistaken"]
  text = "process 1 ended: a file is missing"
  assert error == f"LostProcessError: {text}"
  assert statuses == [2, 2]
  assert last == f"error: {text}"


@pytest.mark.slow
def test_a_process_that_has_finished_is_not_missed(ends):
  error, *statuses, last = ends["finished"]
  kept = "ValueError: not what was saved"
  assert error == f"{kept}\nin a second line"
  # The first process fails, and ends the others.
  assert statuses == [3, 3]
  assert last == f"error: process 0 ended: {kept} in a second line"


@pytest.fixture
def lost(monkeypatch):
  """Process 1 is gone."""

  class Member:
    """Has heard of it."""

    def news(self, seconds):
      return errors.LostProcessError(GONE)

  monkeypatch.setattr(others, "_member", Member())


def fail(*_, **__):
  raise ValueError("not what was saved\nin a second line")


def restore_params(workdir):
  params_reader.restore(
    str(workdir),
    which=params_reader.Which("latest"),
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
    others.on_failure(),
  ):
    raise errors.UserError("a mistake")
  monkeypatch.setattr(others, "_member", None)
  with (
    pytest.raises(ValueError, match="not what was saved"),
    others.on_failure(),
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
    others.on_failure(),
  ):
    fail()
  assert not closed
  with (
    pytest.raises(KeyError),
    checkpoint.Checkpoints(str(tmp_path), options),
  ):
    raise KeyError("a bug")
  assert closed
