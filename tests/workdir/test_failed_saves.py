"""A save that fails is said at once, in one line; none is said to be there."""

import errno
import os
import pathlib
import subprocess
import sys

import orbax.checkpoint as ocp
import pytest

from tests import corpus
from tests import test_main
from tests.workdir import test_checkpoint
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import run_state

ROOT = pathlib.Path(__file__).parents[2]
SHORT = {
  "train.num_steps": 4,
  "train.segments_per_call": 1,
  "checkpoint.every_steps": 1,
}


@pytest.fixture
def no_manifest(monkeypatch):
  """Deletes the files that say what is in a checkpoint, before it is moved."""
  finalize = ocp.StandardCheckpointHandler.finalize

  def forget(self, directory):
    finalize(self, directory)
    for path in directory.iterdir():
      if path.name.startswith("manifest."):
        path.unlink()

  monkeypatch.setattr(ocp.StandardCheckpointHandler, "finalize", forget)


ENDS = {
  "save": lambda checkpoints, run: checkpoints.save(run),
  "wait": lambda checkpoints, run: checkpoints.wait(),
  "close": lambda checkpoints, run: checkpoints.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_save_without_its_manifest_is_a_failed_save(
  tmp_path, no_manifest, end
):
  checkpoints = checkpoint.Checkpoints(str(tmp_path), test_checkpoint.options())
  first, second = (
    run_state.RunState(
      test_checkpoint.make_state(step), test_checkpoint.make_memory()
    )
    for step in (1, 2)
  )
  checkpoints.save(first)
  with pytest.raises(errors.UnreadableError) as caught:
    ENDS[end](checkpoints, second)
  text = str(caught.value)
  assert "\n" not in text
  assert text.startswith(
    f"checkpoint 1 was written to {tmp_path}/checkpoints but cannot be read "
  )
  assert not (tmp_path / "checkpoints" / "2").exists()


def test_a_save_that_lacks_an_item_is_a_failed_save(tmp_path, monkeypatch):
  found = ocp.CheckpointManager.item_metadata

  def without_memory(self, step):
    return {**found(self, step), "memory": None}

  monkeypatch.setattr(ocp.CheckpointManager, "item_metadata", without_memory)
  with pytest.raises(errors.UnreadableError, match="it lacks memory"):
    test_checkpoint.save(tmp_path, [test_checkpoint.make_state(3)])


@pytest.mark.slow
def test_no_run_ends_well_whose_last_save_cannot_be_read(
  tmp_path, data_dir, no_manifest, caplog
):
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  with pytest.raises(errors.UnreadableError, match="checkpoint 4 was written"):
    loop.train(config, str(tmp_path))
  assert "saved" not in caplog.text.lower()


# A disk that refuses another folder, as one without inodes does.
SAVING = """
import os, runpy

make = os.mkdir

def refuse(path, *rest, **options):
  if os.path.basename(path).startswith("memory."):
    number = int(os.environ["REFUSED"])
    raise OSError(number, os.strerror(number), os.fspath(path))
  make(path, *rest, **options)

os.mkdir = refuse
runpy.run_module("transformer_xl.main", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.some(1)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_refuses_a_save_ends_the_command_at_once(
  tmp_path, data_dir, number
):
  flags = corpus.config_flags(data_dir, **SHORT)
  process = subprocess.run(
    [
      *(sys.executable, "-c", SAVING, "--config=experiments/base.py"),
      *(f"--workdir={tmp_path}/run", *flags),
    ],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu", "REFUSED": str(number)},
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,  # Orbax waits for 300 seconds.
    check=False,
  )
  assert process.returncode == 1, process.stderr
  *log, last = process.stderr.splitlines()
  assert last.startswith(f"error: {os.strerror(number)} at {tmp_path}/run/")
  assert all(test_main.LOG_LINE.match(line) for line in log), process.stderr
