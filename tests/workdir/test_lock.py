"""One training run at a time in a folder."""

import errno
import fcntl
import subprocess
import sys

import filelock
import jax
import pytest
from jax.experimental import multihost_utils

from tests import corpus
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import lock


def test_two_runs_in_one_workdir_are_refused(data_dir, tmp_path):
  """Else the second starts anew while the first still saves."""
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  workdir = tmp_path / "run"
  with lock.locked(str(workdir)):
    with pytest.raises(errors.UserError, match="another process trains in"):
      loop.train(config, str(workdir))
    assert [path.name for path in workdir.iterdir()] == [".lock"]
  assert not list(workdir.iterdir())
  with lock.locked(str(workdir)):
    pass


def test_what_keeps_the_first_process_out_is_told_to_all(tmp_path, monkeypatch):
  """Else the others wait for it, long after it has ended."""

  def unwritable(self, **kwargs):
    raise PermissionError("read-only")

  told = []
  monkeypatch.setattr(filelock.FileLock, "acquire", unwritable)
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(
    multihost_utils,
    "broadcast_one_to_all",
    lambda value: told.append(bool(value)) or value,
  )
  with pytest.raises(PermissionError), lock.locked(str(tmp_path)):
    pass
  assert told == [True]
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  monkeypatch.setattr(
    multihost_utils, "broadcast_one_to_all", lambda value: told[0]
  )
  with (
    pytest.raises(errors.UserError, match="process 0 could not lock"),
    lock.locked(str(tmp_path)),
  ):
    pass


def test_a_killed_run_keeps_nobody_out(tmp_path):
  held = (
    "import sys; from transformer_xl.workdir import lock\n"
    "with lock.locked(sys.argv[1]):\n"
    "  print('held', flush=True); sys.stdin.read()"
  )
  with subprocess.Popen(
    [sys.executable, "-c", held, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == "held\n"
    with pytest.raises(errors.UserError), lock.locked(str(tmp_path)):
      pass
    process.kill()
  with lock.locked(str(tmp_path)):
    pass


def test_a_lock_that_is_gone_hides_no_other_error(tmp_path):
  def fail():
    with lock.locked(str(tmp_path)):
      (tmp_path / ".lock").unlink()
      raise ValueError("the first")

  with pytest.raises(ValueError, match="the first"):
    fail()


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
  """Not even the file of a run that was killed on another host."""
  (tmp_path / ".lock").write_text("1\nanother-host\n")

  def missing(descriptor, operation):
    raise OSError(errno.ENOSYS, "no locks")

  monkeypatch.setattr(fcntl, "flock", missing)
  with lock.locked(str(tmp_path)):
    pass
