"""Checkpoints where folders cannot be renamed: a bucket mounted by gcsfuse."""

import errno
import json
import os

import psutil
import pytest

from tests import corpus
from tests.training.runs import steps
from transformer_xl.training import loop
from transformer_xl.workdir import checkpoint_items


@pytest.fixture
def mounted(tmp_path, monkeypatch):
  """A folder in which folders that are not empty keep their names."""
  folder = tmp_path / "mounted"
  folder.mkdir()
  mounts = psutil.disk_partitions(all=True)
  found = mounts[0]._replace(mountpoint=str(folder), fstype="fuse.gcsfuse")
  monkeypatch.setattr(psutil, "disk_partitions", lambda all: [*mounts, found])
  for name in ("rename", "replace"):
    monkeypatch.setattr(os, name, _refusing(getattr(os, name)))
  return folder


def _refusing(rename):
  def refusing(source, target, **options):
    if os.path.isdir(source) and os.listdir(source):
      raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), source)
    return rename(source, target, **options)

  return refusing


@pytest.mark.rest
def test_a_mounted_bucket_needs_no_renaming_of_folders(
  data_dir, mounted, caplog
):
  workdir = mounted / "run"
  config = corpus.config(
    data_dir, **{"train.num_steps": 8, "checkpoint.every_steps": 4}
  )
  assert loop.train(config, str(workdir))
  assert steps(workdir) == [4, 8]
  folder = workdir / "checkpoints"
  (folder / "8" / "commit_success.txt").unlink()  # Killed just before the end.
  assert loop.train(config, str(workdir))
  assert "The checkpoints 8 in the mounted bucket" in caplog.text
  sessions = json.loads((workdir / "config.json").read_text())["sessions"]
  assert [session["step"] for session in sessions] == [0, 4]
  assert steps(workdir) == [4, 8]
  assert (folder / "8" / "commit_success.txt").exists()


@pytest.mark.rest
def test_a_damaged_checkpoint_in_a_mounted_bucket_is_put_aside(
  data_dir, mounted
):
  workdir = mounted / "run"
  config = corpus.config(
    data_dir, **{"train.num_steps": 8, "checkpoint.every_steps": 4}
  )
  assert loop.train(config, str(workdir))
  (workdir / "checkpoints" / "8" / "metadata" / "metadata").write_text("{}")
  assert loop.train(config, str(workdir))
  assert steps(workdir) == [4, 8]
  assert len(list((workdir / "damaged").iterdir())) == 1


def test_only_what_is_under_the_mount_is_in_the_bucket(mounted, tmp_path):
  inside = mounted / "run" / "deeper"
  outside = tmp_path / "mounted_elsewhere"
  assert checkpoint_items.is_mounted_bucket(str(inside))
  assert checkpoint_items.is_mounted_bucket(str(mounted))
  assert not checkpoint_items.is_mounted_bucket(str(outside))
