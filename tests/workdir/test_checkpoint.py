"""When checkpoints are saved, what is kept, what comes back."""

import errno
import importlib.util
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests import kinds
from tests import tiny
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.model import network
from transformer_xl.model.mixers import attention
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import checksums
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_state


def options(**updates):
  values = {"checkpoint." + name: value for name, value in updates.items()}
  values = {"train.segments_per_call": 1} | values
  return load.from_config_dict(tiny.config_dict(**values)).checkpoint


def make_state(step, *, width=4, average=False, optimizer="adam"):
  kernel = jnp.arange(3 * width, dtype=jnp.float32).reshape(3, width) + step
  params = {"layers": {"kernel": kernel, "bias": jnp.full((width,), 0.1)}}
  moments = jax.tree.map(lambda leaf: leaf * 2, params)
  state = {"adam": (jnp.int32(step), moments), "sgd": (jnp.int32(step),)}
  return run_state.TrainState(
    jnp.int32(step),
    params,
    state[optimizer],
    jax.tree.map(lambda leaf: leaf + 1, params) if average else None,
  )


def make_memory(lanes=2, value=1.5):
  hiddens = jnp.full((2, lanes, 3, 4), float(value))
  length = jnp.arange(lanes, dtype=jnp.int32)
  return network.State((attention.Memory(hiddens),), length)


def save(workdir, states, *, nll=None, memory=None, text="", **updates):
  checkpoints = checkpoint.Checkpoints(str(workdir), options(**updates))
  for state in states:
    step = int(state.step)
    checkpoints.save(
      run_state.RunState(
        state,
        memory or make_memory(value=step),
        run_state.Metadata(log_window={"nll": 0.1 + step}),
        validation_loss=None if nll is None else nll[step],
        validation_text=text,
      )
    )
  checkpoints.close()


def restore(workdir, state, memory=None, **updates):
  checkpoints = checkpoint.Checkpoints(str(workdir), options(**updates))
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  target = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    (state, memory or make_memory()),
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoint, "RETRY_AFTER_SECONDS", 0.0)
    try:
      return checkpoints.restore_newest(*target)
    finally:
      checkpoints.close()


def read(workdir, which="latest", *, average=False):
  """The parameters of a checkpoint, and its step."""
  return params_reader.restore(
    str(workdir),
    which=params_reader.Which(which, is_average=average),
    target=make_state(0).params,
  )


def steps(workdir):
  folder = pathlib.Path(workdir) / checkpoint_items.DIRECTORY
  return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def assert_same(one, other):
  assert jax.tree.structure(one) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, one, other)


def states_of_other_mixers():
  """One state of each mixer, in which all numbers differ."""
  names = tuple(name for name in registry.mixers if name != kinds.USUAL)
  state = network.empty_state(
    tiny.model_config(layers=names, num_layers=len(names)),
    batch_size=2,
    mem_len=3,
    step_len=3,
  )
  return jax.tree.map(
    lambda leaf: jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape),
    state.layers,
  )


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_the_newer_interface_of_orbax_loads_a_checkpoint(tmp_path):
  """Every item by its name, without anything of this package."""
  # Later releases have it without the folder of experiments.
  name = "orbax.checkpoint.v1"
  if importlib.util.find_spec(name) is None:
    name = "orbax.checkpoint.experimental.v1"
  v1 = importlib.import_module(name)
  state = make_state(3)
  save(tmp_path, [state])
  folder = tmp_path / checkpoint_items.DIRECTORY / "3"
  assert_same(v1.load(folder, checkpointable_name="params"), state.params)
  assert {"params"} < {*v1.load_checkpointables(folder)}


def test_states_of_unequal_layers_come_back(tmp_path):
  """Also where one of the layers has arrays that are empty."""
  memory = make_memory()
  (layer,) = memory.layers
  others = states_of_other_mixers()
  assert any(leaf.size == 0 for leaf in jax.tree.leaves(others))
  short = attention.Memory(layer.hiddens[:, :, 2:])
  unequal = memory._replace(layers=(short, layer, *others))
  save(tmp_path, [make_state(7)], memory=unequal)
  assert_same(restore(tmp_path, make_state(0), unequal).memory, unequal)
  # With other layers from now on it starts empty.
  assert restore(tmp_path, make_state(0)).memory is None
  swapped = memory._replace(layers=(layer, short, *others))
  assert restore(tmp_path, make_state(0), swapped).memory is None


def test_everything_comes_back_as_it_was_saved(tmp_path):
  state, memory = make_state(7, average=True), make_memory()
  save(tmp_path, [state], memory=memory)
  restored = restore(tmp_path, make_state(0, average=True))
  assert_same(restored.state, state)
  assert_same(restored.memory, memory)
  assert restored.metadata.log_window == {"nll": 7.1}


def test_a_model_without_memory_is_saved_and_continued(tmp_path):
  empty = attention.Memory(jnp.zeros((2, 2, 0, 4)))
  nothing = network.State((empty,), jnp.arange(2, dtype=jnp.int32))
  save(tmp_path, [make_state(7)], memory=nothing)
  restored = restore(tmp_path, make_state(0), nothing)
  assert_same(restored.state, make_state(7))
  assert_same(restored.memory, nothing)
  # With memory from now on it starts empty.
  assert restore(tmp_path, make_state(0)).memory is None


@pytest.mark.parametrize("damaged", ['{"nl', "{}", "[]"])
def test_a_damaged_validation_loss_does_not_end_a_run(tmp_path, damaged):
  save(tmp_path, [make_state(3), make_state(6)], nll={3: 1.0, 6: 2.0})
  path = tmp_path / "checkpoints" / "3" / "metrics" / "metrics"
  path.write_text(damaged)
  assert int(restore(tmp_path, make_state(0)).state.step) == 6


def test_an_empty_folder_restores_nothing(tmp_path):
  assert restore(tmp_path, make_state(0)) is None


def test_the_newest_and_the_best_are_kept(tmp_path):
  losses = {1: 5.0, 2: 3.0, 3: 4.0, 4: 4.5, 5: 4.2}
  states = [make_state(step) for step in losses]
  save(tmp_path, states, nll=losses, keep_latest=2)
  assert steps(tmp_path) == [2, 4, 5]
  for which, expected in [("best", 2), ("latest", 5), ("4", 4)]:
    params, step = read(tmp_path, which)
    assert step == expected
    assert_same(params, make_state(expected).params)


def test_losses_on_other_text_are_not_compared(tmp_path):
  """The run went on with a text that is harder, or other tokens of it."""
  losses = {1: 1.5, 2: 1.0, 3: 1.2}
  save(tmp_path, map(make_state, losses), nll=losses, text="a", keep_latest=1)
  assert read(tmp_path, "best")[1] == 2
  losses = {4: 4.0, 5: 3.0, 6: 3.5, 7: 3.5}
  save(tmp_path, map(make_state, losses), nll=losses, text="b", keep_latest=1)
  assert steps(tmp_path) == [2, 5, 7]
  assert read(tmp_path, "best")[1] == 5


def test_without_a_best_only_the_newest_are_kept(tmp_path):
  save(tmp_path, map(make_state, range(1, 6)), keep_latest=3)
  assert steps(tmp_path) == [3, 4, 5]


def _delete_half(folder):
  shutil.rmtree(folder / "optimizer")
  (folder / "_CHECKPOINT_METADATA").unlink()


def _damage_arrays(folder):
  files = [p for p in (folder / "params").rglob("*") if p.is_file()]
  for path in files:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _delete_description(folder):
  (folder / "optimizer" / "_METADATA").unlink()


def _damage_metadata(folder):
  for path in (folder / "metadata").iterdir():
    path.write_text('{"memory_shapes": {"layers')


@pytest.mark.some(2)
@pytest.mark.parametrize(
  "harm",
  [_delete_half, _damage_arrays, _delete_description, _damage_metadata],
)
def test_a_damaged_checkpoint_is_put_aside_for_the_one_before(tmp_path, harm):
  save(tmp_path, [make_state(3), make_state(6)])
  harm(tmp_path / checkpoint_items.DIRECTORY / "6")
  restored = restore(tmp_path, make_state(0))
  assert_same(restored.state, make_state(3))
  assert steps(tmp_path) == [3]
  (aside,) = (tmp_path / "damaged").iterdir()
  assert aside.name.startswith("6.")
  save(tmp_path, [make_state(6)])  # Its step is free for the next run.
  assert_same(restore(tmp_path, make_state(0)).state, make_state(6))


def _fail(monkeypatch, *failures):
  """The first reads end in these errors; returns the steps that are tried."""
  read_metadata = checkpoint_items.read_metadata
  tries = []
  left = list(failures)

  def failing(manager, step):
    tries.append(step)
    if left:
      raise left.pop(0)
    return read_metadata(manager, step)

  monkeypatch.setattr(checkpoint_items, "read_metadata", failing)
  return tries


# Whatever the error is: no list of errors tells damage from a poor storage.
ERRORS = {
  "damage": ValueError("not what was saved"),
  "i/o": OSError(errno.EIO, "Input/output error"),
  "devices": RuntimeError("out of memory"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_that_passes_moves_no_checkpoint(tmp_path, monkeypatch, name):
  save(tmp_path, [make_state(3), make_state(6)])
  tries = _fail(monkeypatch, ERRORS[name])
  assert_same(restore(tmp_path, make_state(0)).state, make_state(6))
  assert tries == [6, 6]
  assert steps(tmp_path) == [3, 6]
  assert not (tmp_path / "damaged").exists()


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_that_stays_puts_the_checkpoint_aside(
  tmp_path, monkeypatch, name
):
  save(tmp_path, [make_state(3), make_state(6)])
  folder = tmp_path / checkpoint_items.DIRECTORY / "6"
  files = {path.relative_to(folder) for path in folder.rglob("*")}
  tries = _fail(monkeypatch, *[ERRORS[name]] * 2)
  assert_same(restore(tmp_path, make_state(0)).state, make_state(3))
  assert tries == [6, 6, 3]
  assert steps(tmp_path) == [3]
  (aside,) = (tmp_path / "damaged").iterdir()
  assert {path.relative_to(aside) for path in aside.rglob("*")} == files


def test_if_no_checkpoint_can_be_read_none_is_moved(tmp_path, monkeypatch):
  save(tmp_path, [make_state(3), make_state(6)])
  tries = _fail(monkeypatch, *[ERRORS["devices"]] * 4)
  with pytest.raises(errors.UserError, match=r"the checkpoints \[6, 3\]"):
    restore(tmp_path, make_state(0))
  assert tries == [6, 6, 3, 3]
  assert steps(tmp_path) == [3, 6]
  assert not (tmp_path / "damaged").exists()


def test_another_width_is_one_line_and_moves_nothing(tmp_path):
  save(tmp_path, [make_state(3)])
  for call in (
    lambda: restore(tmp_path, make_state(0, width=5)),
    lambda: params_reader.restore(
      str(tmp_path),
      which=params_reader.Which("latest"),
      target=make_state(0, width=5).params,
    ),
  ):
    with pytest.raises(errors.UserError, match="of another model") as caught:
      call()
    assert "layers/bias has shape (4,) there and (5,)" in str(caught.value)
    assert "\n" not in str(caught.value)
  assert steps(tmp_path) == [3]


def test_another_optimizer_is_one_line_and_moves_nothing(tmp_path):
  save(tmp_path, [make_state(3)])
  with pytest.raises(errors.UserError, match="another optimizer") as caught:
    restore(tmp_path, make_state(0, optimizer="sgd"))
  assert "\n" not in str(caught.value)
  assert steps(tmp_path) == [3]
  assert not (tmp_path / "damaged").exists()


def test_other_lanes_bring_everything_but_the_memory(tmp_path):
  save(tmp_path, [make_state(3)])
  restored = restore(tmp_path, make_state(0), make_memory(lanes=4))
  assert restored.memory is None
  assert_same(restored.state, make_state(3))


def test_a_moving_average_can_be_added_and_left_out(tmp_path):
  save(tmp_path / "without", [make_state(3)])
  restored = restore(tmp_path / "without", make_state(0, average=True))
  assert_same(restored.state.average, make_state(3).params)
  save(tmp_path / "with", [make_state(3, average=True)])
  restored = restore(tmp_path / "with", make_state(0))
  assert restored.state.average is None
  assert_same(restored.state.params, make_state(3).params)


def test_an_error_in_the_background_comes_to_light(tmp_path, monkeypatch):
  def finalize(*_):
    raise OSError("no space left")

  monkeypatch.setattr(ocp.StandardCheckpointHandler, "finalize", finalize)
  checkpoints = checkpoint.Checkpoints(str(tmp_path), options())
  checkpoints.save(run_state.RunState(make_state(1), make_memory()))
  with pytest.raises(OSError, match="no space left"):
    checkpoints.close()
  assert steps(tmp_path) == []


def test_a_bucket_that_is_gone_ends_in_one_line(tmp_path, monkeypatch):
  """Orbax may say so once more when it is closed."""
  checkpoints = checkpoint.Checkpoints(str(tmp_path), options())
  close = checkpoints._manager.close

  def refuse():
    close()
    raise ConnectionError("no answer")

  monkeypatch.setattr(checkpoints._manager, "close", refuse)
  monkeypatch.setattr(checkpoints, "_directory", "gs://bucket/run/checkpoints")
  with pytest.raises(errors.UserError, match="no answer") as caught:
    checkpoints.close()
  assert "\n" not in str(caught.value)


def test_metadata_is_plain_json(tmp_path):
  save(tmp_path, [make_state(3)])
  folder = tmp_path / checkpoint_items.DIRECTORY / "3" / "metadata"
  metadata = json.loads((folder / "metadata").read_text())
  assert metadata.pop("digest") == checksums.of_json(metadata)
  assert metadata.pop("fingerprints").keys() == {
    "params/layers/kernel",
    "params/layers/bias",
    "optimizer/step",
    "optimizer/opt_state/0",
    "optimizer/opt_state/1/layers/kernel",
    "optimizer/opt_state/1/layers/bias",
    "memory/layers.0.hiddens",
    "memory/length",
  }
  assert metadata == {
    "log_window": {"nll": 3.1},
    "guard": None,
    "data": None,
    "owes_evaluation": False,
    "tokens_read": 0,
    "initialised_from": None,
    "average_start": 0,
    "frozen": [],
    "adapters": None,
    "memory_shapes": {"layers.0.hiddens": [2, 2, 3, 4], "length": [2]},
  }


def test_log_lines_are_on_the_disk_before_their_checkpoint(
  tmp_path, monkeypatch
):
  """A run that resumes there writes none of them again."""
  seen = []
  settle = storage.settle

  def settled(folder, name):
    path = tmp_path / "checkpoints"
    seen.append((name, [*path.iterdir()] if path.exists() else []))
    settle(folder, name)

  monkeypatch.setattr(storage, "settle", settled)
  (tmp_path / metrics_log.FILE).write_text("{}\n")
  save(tmp_path, [make_state(3)])
  assert seen == [(metrics_log.FILE, []), (goodput.FILE, [])]


def test_what_changes_after_a_save_is_not_in_it(tmp_path):
  checkpoints = checkpoint.Checkpoints(str(tmp_path), options())
  window = {"nll": 1.25}
  metadata = run_state.Metadata(log_window=window)
  checkpoints.save(run_state.RunState(make_state(5), make_memory(), metadata))
  window["nll"] += 1.0  # The next chunk's, while this one is being written.
  checkpoints.close()
  restored = restore(tmp_path, make_state(0))
  assert restored.metadata.log_window == {"nll": 1.25}
