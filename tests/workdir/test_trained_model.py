"""The parameters of a run are read by name, step or rank."""

import itertools
import shutil
import subprocess
import sys
import time
import weakref
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import transformer_xl
from tests import corpus
from tests import kinds
from tests import own_process
from tests import saved_runs
from tests import tiny
from tests.workdir.test_checkpoint import assert_same
from tests.workdir.test_checkpoint import make_state
from tests.workdir.test_checkpoint import read
from tests.workdir.test_checkpoint import save
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.importers import export_run
from transformer_xl.text import generate
from transformer_xl.text import score
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import trained_model


def test_parameters_of_the_average_are_read_by_name(tmp_path):
  state = make_state(3, average=True)
  save(tmp_path, [state])
  params, _ = read(tmp_path, average=True)
  assert_same(params, state.average)
  save(tmp_path / "without", [make_state(3)])
  with pytest.raises(errors.UserError, match="no average of the"):
    read(tmp_path / "without", average=True)


def test_parameters_alone_are_a_checkpoint_that_evaluation_reads(tmp_path):
  params = make_state(9).params
  params_writer.save(str(tmp_path), params, step=9)
  restored, step = read(tmp_path)
  assert step == 9
  assert_same(restored, params)


class Late:
  """An array that is made when it is asked for."""

  made: ClassVar[list[weakref.ref]] = []
  most_alive = 0

  def __init__(self, values):
    self.values = values
    self.shape = values.shape
    self.size = values.size
    self.dtype = values.dtype

  def __array__(self, dtype=None, copy=None):
    made = np.array(self.values).view(Counted)
    Late.made.append(weakref.ref(made))
    alive = sum(reference() is not None for reference in Late.made)
    Late.most_alive = max(Late.most_alive, alive)
    return made


class Counted(np.ndarray):
  """An array to which there may be weak references."""


def test_parameters_are_written_one_by_one(tmp_path):
  params = {f"a{n}": np.full((3, 2), n, np.float32) for n in range(8)}
  params_writer.save_one_by_one(
    str(tmp_path), jax.tree.map(Late, params), step=9
  )
  restored, _ = params_reader.restore(
    str(tmp_path),
    which=params_reader.Which("latest"),
    target=jax.tree.map(jnp.zeros_like, params),
  )
  assert_same(restored, params)
  assert 1 <= Late.most_alive <= 2  # One is written while the next is made.


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_parameters_that_are_not_numbers_are_refused_by_name(tmp_path, bad):
  folder = saved_runs.write(tmp_path / "run")
  config = load.from_config_dict(load.saved(folder))
  params = tiny.params(config.model)
  softmax = params["softmax"]
  lost = {**softmax, "bias": softmax["bias"].at[3].set(bad)}
  damaged = {**params, "softmax": lost}
  params_writer.save(folder, damaged, step=saved_runs.STEP + 1)
  text = tmp_path / "text.txt"
  text.write_text("abc\n")
  fields = {"score.file": str(text), "generate.prompt": "abc"}
  config = load.changed(config, fields)
  for use in (
    lambda: transformer_xl.load(folder),
    lambda: export_run.export(folder, str(tmp_path / "exported")),
    lambda: score.run(config, folder),
    lambda: generate.run(config, folder),
  ):
    with pytest.raises(errors.UserError, match=r"^softmax/bias in ") as caught:
      use()
    message = str(caught.value)
    assert f"checkpoint 8 of {folder} has numbers that are inf" in message
    assert "--config.eval.checkpoint=STEP" in message
    assert "\n" not in message
  assert not (tmp_path / "exported").exists()
  # Another checkpoint serves.
  assert transformer_xl.load(folder, checkpoint=7).score(["abc"])[0].nll > 0


WRITES = [
  {"model.encoding": kinds.encoding(rotates=True), "model.layers": (name,)}
  for name in kinds.mixers(writes_segments=True)
]


@pytest.mark.parametrize(
  ("fields", "lengths", "warning"),
  [
    ({}, (12, 0), ""),
    ({}, (13, 0), "beyond the 12 of training; set a segment_len of 12 or less"),
    ({}, (12, 4), "trained without one"),
    ({"train.segment_len_std": 1.0}, (16, 0), "beyond the 15 of training"),
    ({"model.encoding": "relative"}, (99, 99), ""),
    *(
      (fields, *expected)
      for fields in WRITES
      for expected in (
        ((16, 16), "training had segments of 12; set that segment_len"),
        ((12, 4), "4 of its 12 tokens; set a mem_len of 12 or more"),
        ((12, 12), ""),
        ((16, 0), ""),
      )
    ),
  ],
)
def test_segments_that_training_did_not_have_are_warned_of(
  fields, lengths, warning, caplog
):
  values = {
    "model.encoding": "absolute",
    "train.segment_len": 8,
    "train.context_len": 4,
    "train.mem_len": 0,
  }
  config = load.from_config_dict(tiny.config_dict(**values | fields))
  segment_len, mem_len = lengths
  trained_model.warn_of_untrained_segments(
    config.model, config.train, segment_len=segment_len, mem_len=mem_len
  )
  assert len(caplog.messages) == bool(warning)
  assert warning in caplog.text


@pytest.mark.parametrize("which", ["5", "\u00b2", "newest"])
def test_a_checkpoint_that_is_not_there_is_named(tmp_path, which):
  save(tmp_path, [make_state(3)])
  with pytest.raises(errors.UserError, match=r"has the steps \[3\]"):
    read(tmp_path, which)


def cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_a_folder(path):
  path.unlink()
  path.mkdir()


@pytest.mark.some(1)
@pytest.mark.parametrize("harm", [cut, replace_by_a_folder])
def test_a_damaged_file_matters_only_if_it_is_needed(tmp_path, harm):
  save(tmp_path / "run", [make_state(3)], nll={3: 1.0})
  folder = tmp_path / "run" / "checkpoints" / "3"
  refusals = {}
  for path in [*folder.rglob("*")]:
    if not path.is_file():
      continue
    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "run", damaged)
    name = path.relative_to(tmp_path / "run")
    harm(damaged / name)
    try:
      params, _ = read(damaged)
      assert_same(params, make_state(3).params)
    except errors.UserError as error:
      refusals[path.relative_to(folder).parts[0]] = str(error)
    shutil.rmtree(damaged)
  assert refusals.keys() == {"params", "metadata"}
  for refusal in refusals.values():
    assert "checkpoint 3 in" in refusal
    assert "\n" not in refusal


def test_a_checkpoint_with_a_damaged_validation_loss_is_not_the_best(tmp_path):
  save(tmp_path, [make_state(3), make_state(6)], nll={3: 2.0, 6: 1.0})
  (tmp_path / "checkpoints" / "6" / "metrics" / "metrics").write_text('{"nl')
  _, step = read(tmp_path, "best")
  assert step == 3


@pytest.mark.parametrize(
  ("which", "nll", "reason"),
  [
    (
      "best",
      {3: 1.5, 6: None},
      "not the newest, 6, which has not been validated;",
    ),
    ("best", {3: 1.5, 6: 2.0}, "not the newest, 6, whose loss is 2.0000;"),
    ("best", {3: 2.0, 6: 1.5}, ""),
    ("latest", {3: 1.5, 6: 2.0}, ""),
  ],
)
def test_why_the_best_checkpoint_is_not_the_newest_is_said(
  tmp_path, caplog, which, nll, reason
):
  save(tmp_path, [make_state(3), make_state(6)], nll=nll)
  _, step = read(tmp_path, which)
  assert step == (3 if reason else 6)
  said = [text for text in caplog.messages if "Reading checkpoint" in text]
  assert len(said) == bool(reason)
  if reason:
    assert "Reading checkpoint 3, which has the lowest validation" in said[0]
    assert "(1.5000 nats per token)" in said[0]
    assert reason in said[0]
    assert said[0].endswith("; eval.checkpoint=latest reads that one.")


@pytest.mark.parametrize("average", [False, True])
def test_a_checkpoint_that_a_run_replaces_meanwhile_is_looked_for_again(
  tmp_path, monkeypatch, average
):
  save(tmp_path / "run", [make_state(3, average=True)])
  save(tmp_path / "later", [make_state(6, average=True)])
  find = params_reader._find

  def find_and_replace(*arguments):
    step = find(*arguments)
    checkpoints = tmp_path / "run" / "checkpoints"
    if (checkpoints / "3").exists():
      shutil.rmtree(checkpoints / "3")
      shutil.copytree(
        tmp_path / "later" / "checkpoints" / "6", checkpoints / "6"
      )
    return step

  monkeypatch.setattr(params_reader, "_find", find_and_replace)
  params, step = read(tmp_path / "run", average=average)
  state = make_state(6, average=True)
  assert step == 6
  assert_same(params, state.average if average else state.params)


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_is_loaded_while_it_trains(tmp_path):
  """It keeps one checkpoint and replaces it all the time."""
  workdir = str(tmp_path / "run")
  updates = {
    "train.num_steps": 60,
    "train.ema_decay": 0.5,
    "train.eval_every_steps": 2,
    "checkpoint.every_steps": 2,
    "checkpoint.keep_latest": 1,
  }
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir, **updates)
  config = corpus.config(data_dir, **updates)
  choices = itertools.product(("latest", "best"), ("raw", "ema"))
  found = set()
  with subprocess.Popen(
    [
      *(sys.executable, "-m", "transformer_xl.main"),
      *("--config=experiments/base.py", f"--workdir={workdir}", *flags),
    ],
    cwd=own_process.ROOT,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    for which, parameters in itertools.cycle(choices):
      if process.poll() is not None:
        break
      values = {"eval.checkpoint": which, "eval.parameters": parameters}
      saved = storage.names(f"{workdir}/checkpoints")
      if not any(name.isdecimal() for name in saved):  # None is complete.
        time.sleep(0.1)
        continue
      model = trained_model.load(load.changed(config, values), workdir)
      found.add(model.step)
    _, log = process.communicate()
  assert process.returncode == 0, log
  assert len(found) > 3


def test_a_best_checkpoint_that_goes_while_it_is_ranked_is_not_missed(
  tmp_path, monkeypatch
):
  """The run that trains deletes it after its folder is listed."""
  save(tmp_path, [make_state(2)], nll={2: 1.0})
  save(tmp_path / "next", [make_state(4)], nll={4: 0.5})
  folder = tmp_path / checkpoint_items.DIRECTORY
  following = tmp_path / "next" / checkpoint_items.DIRECTORY / "4"
  read_metrics = ocp.CheckpointManager.metrics

  def replace_then_read(manager, step):
    if following.exists():
      shutil.rmtree(folder / "2")
      following.rename(folder / "4")
    return read_metrics(manager, step)

  monkeypatch.setattr(ocp.CheckpointManager, "metrics", replace_then_read)
  params, step = read(tmp_path, "best")
  assert step == 4
  assert_same(params, make_state(4).params)


def test_without_validations_no_checkpoint_is_the_best(tmp_path):
  params_writer.save(str(tmp_path), make_state(9).params, step=9)
  with pytest.raises(errors.UserError, match=r"eval\.checkpoint=latest, or t"):
    read(tmp_path, "best")


def test_a_run_that_saved_nothing_yet_is_told_to_train(tmp_path):
  (tmp_path / checkpoint_items.DIRECTORY).mkdir()
  with pytest.raises(errors.UserError, match="there are no checkpoints in"):
    read(tmp_path)


def test_a_bucket_that_refuses_is_not_one_without_checkpoints(bucket, faulty):
  with (
    faulty.failing("answer", status=403),
    pytest.raises(errors.UserError, match=r"roles/storage\.objectUser"),
  ):
    read(f"{bucket}/run")
