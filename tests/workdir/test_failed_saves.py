"""A save that fails is said at once, in one line; none is said to be there."""

import orbax.checkpoint as ocp
import pytest

from tests import corpus
from tests.workdir import test_checkpoint
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import run_state

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
  config = corpus.config(data_dir, **SHORT | {"checkpoint.every_steps": 4})
  with pytest.raises(errors.UnreadableError, match="checkpoint 4 was written"):
    loop.train(config, str(tmp_path))
  assert "saved" not in caplog.text.lower()
