"""The training loop in one process: its order, its log, its end."""

import math
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import tiny
from tests.training import test_step
from tests.training.runs import lines
from tests.training.runs import steps
from transformer_xl import errors
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import run_history

FIELDS = {
  "step",
  "tokens",
  "loss",
  "learning_rate",
  "gradient_norm",
  "tokens_per_second",
  "mfu",
}


def compile_to_the_bit(monkeypatch):
  """For runs of several programs: see `tiny.TO_THE_BIT`."""
  make_update = programs.update

  def compiled(config, mesh):
    update, made = make_update(config, mesh), []

    def call(*arguments):
      if not made:
        lowered = update.lower(*arguments)
        made.append(lowered.compile(compiler_options=tiny.TO_THE_BIT))
      return made[0](*arguments)

    return call

  monkeypatch.setattr(programs, "update", compiled)


@pytest.mark.rest
def test_intervals_need_not_be_multiples_of_a_call(data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  updates = {
    "train.num_steps": 9,
    "train.segments_per_call": 4,
    "train.log_every_steps": 1,
    "train.eval_every_steps": 5,
    "checkpoint.every_steps": 3,
    "checkpoint.keep_latest": 9,
  }
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  records = lines(tmp_path)
  training = [record for record in records if "split" not in record]
  assert [record["step"] for record in training] == list(range(1, 10))
  valid = [record for record in records if "split" in record]
  assert [record["step"] for record in valid] == [5, 9]
  assert steps(tmp_path) == [3, 5, 6, 9]
  assert "Updates in a call: 1, not train.segments_per_call=4" in caplog.text


def test_training_learns_logs_and_saves(data_dir, tmp_path):
  config = corpus.config(
    data_dir,
    **{
      "train.num_steps": 60,
      "train.log_every_steps": 4,
      "train.eval_every_steps": 20,
      "checkpoint.every_steps": 10,
    },
  )
  assert loop.train(config, str(tmp_path))
  records = lines(tmp_path)
  training = [record for record in records if "split" not in record]
  assert all(set(record) == FIELDS for record in training)
  assert [record["step"] for record in training] == list(range(4, 61, 4))
  assert training[-1]["tokens"] == 60 * 4 * 8
  assert training[0]["loss"] == pytest.approx(math.log(23), abs=0.4)
  assert training[-1]["loss"] < training[0]["loss"] - 0.1
  assert all(record["mfu"] is None for record in training)
  assert training[-1]["tokens_per_second"] > 0
  valid = [record for record in records if "split" in record]
  assert [record["step"] for record in valid] == [20, 40, 60]
  assert all(record["num_tokens"] == 210 for record in valid)
  best = min(valid, key=lambda record: record["nll"])["step"]
  assert steps(tmp_path) == sorted({best, 50, 60})


def test_the_last_update_is_logged_in_a_run_shorter_than_the_period(
  data_dir, tmp_path
):
  updates = {"train.num_steps": 2, "train.log_every_steps": 4}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  (record,) = lines(tmp_path)
  assert record["step"] == 2
  assert math.isfinite(record["loss"])


def test_a_finished_run_says_so_and_changes_nothing(data_dir, tmp_path, caplog):
  assert loop.train(corpus.config(data_dir), str(tmp_path))
  before = {path: path.read_bytes() for path in tmp_path.glob("*.json*")}
  assert len(before) == 3
  caplog.set_level("INFO")
  for num_steps in (12, 8):
    changed = {"train.num_steps": num_steps, "train.learning_rate": 0.5}
    assert loop.train(corpus.config(data_dir, **changed), str(tmp_path))
    said = f"finished: the run has 12 steps and train.num_steps={num_steps}."
    assert said in caplog.text
    assert {path: path.read_bytes() for path in before} == before
  assert steps(tmp_path) == [8, 12]
  assert run_history.read(str(tmp_path)).resumes() == []


def test_a_loss_that_is_no_number_names_the_last_good_checkpoint(
  data_dir, tmp_path
):
  wild = corpus.config(
    data_dir, **{"train.learning_rate": 1e30, "train.clip_norm": 0.0}
  )
  with pytest.raises(errors.DivergenceError, match="checkpoint is none"):
    loop.train(wild, str(tmp_path))
  assert steps(tmp_path) == []
  assert loop.train(
    corpus.config(data_dir, **{"train.num_steps": 4}), str(tmp_path)
  )
  with pytest.raises(errors.DivergenceError, match="is step 4") as caught:
    loop.train(wild, str(tmp_path))
  assert "not finite" in str(caught.value)
  assert "\n" not in str(caught.value)
  assert steps(tmp_path) == [4]
  assert loop.train(corpus.config(data_dir), str(tmp_path))
  assert all(math.isfinite(record["loss"]) for record in lines(tmp_path))
  assert [record["step"] for record in lines(tmp_path)] == [*range(2, 13, 2)]


def test_the_evaluation_of_a_run_is_that_of_its_checkpoint_at_temperature_1(
  data_dir, tmp_path
):
  config = corpus.config(
    data_dir,
    **{"train.eval_every_steps": 12, "eval.split": "valid"},
    **{"eval.temperature": (1.5, 1.0)},
  )
  loop.train(config, str(tmp_path))
  hot, card = evaluate.run(config, str(tmp_path))
  last = lines(tmp_path)[-1]
  assert last["split"] == "valid"
  assert card["checkpoint_step"] == 12
  assert card["nll"] == last["nll"] != hot["nll"]


@pytest.mark.rest
def test_a_mean_that_is_asked_for_when_a_run_goes_on_is_kept(
  data_dir, tmp_path, monkeypatch
):
  compile_to_the_bit(monkeypatch)

  def params(workdir, kind):
    config = corpus.config(data_dir, **mean, **{"eval.parameters": kind})
    return evaluate.load(config, str(workdir)).params

  mean = {"train.asgd_start_step": 8}
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert loop.train(corpus.config(data_dir, **mean), str(whole))
  without = corpus.config(data_dir, **{"train.num_steps": 4})
  assert loop.train(without, str(parts))
  assert loop.train(corpus.config(data_dir, **mean), str(parts))
  last, average = params(parts, "raw"), params(parts, "asgd")
  test_step.assert_equal(params(whole, "raw"), last)
  test_step.assert_equal(params(whole, "asgd"), average)
  assert comparison.distance(last, average) > 1e-3


@pytest.mark.rest
def test_a_mean_cannot_start_in_what_a_run_has_behind_it(data_dir, tmp_path):
  """The mean of all parameters since then cannot be made any more."""

  def train(**updates):
    config = corpus.config(data_dir, **{"eval.parameters": "raw"} | updates)
    return loop.train(config, str(tmp_path))

  assert train(**{"train.num_steps": 4})
  with pytest.raises(errors.UserError, match=r"asgd_start_step=4\.$"):
    train(**{"train.asgd_start_step": 2})
  assert train(**{"train.asgd_start_step": 4, "train.num_steps": 8})
  with pytest.raises(errors.UserError, match=r"asgd_start_step=4\.$"):
    train(**{"train.asgd_start_step": 6})
  assert train(**{"train.asgd_start_step": 4})
  # Nor does a moving average continue the mean, which would be taken for one.
  with pytest.raises(errors.UserError, match=r"ema_decay=0 --.*_step=4\.$"):
    train(**{"train.ema_decay": 0.5, "train.num_steps": 12})


@pytest.fixture(scope="module")
def four_updates(data_dir, tmp_path_factory):
  """A run of four updates, for tests to copy."""
  workdir = tmp_path_factory.mktemp("four") / "run"
  loop.train(corpus.config(data_dir, **{"train.num_steps": 4}), str(workdir))
  return workdir


@pytest.fixture
def begun(four_updates, tmp_path):
  """A run of four updates, to go on with."""
  return shutil.copytree(four_updates, tmp_path / "run")


@pytest.mark.rest
def test_other_lanes_start_with_empty_memory_and_a_warning(
  data_dir, begun, caplog
):
  config = corpus.config(data_dir, **{"train.batch_size": 8})
  assert loop.train(config, str(begun))
  assert "memory starts empty" in caplog.text
  assert "continue elsewhere in the text" in caplog.text
  assert "config.train.batch_size 4 -> 8" in caplog.text
  assert run_history.read(str(begun)).resumes() == [4]
  assert steps(begun)[-1] == 12


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("change", "keeps"),
  [
    ({"train.learning_rate": 1e-3}, True),
    ({"data.name": "other"}, False),
  ],
)
def test_memory_is_kept_only_where_its_text_precedes(
  data_dir, begun, monkeypatch, change, keeps
):
  if "data.name" in change and not (pathlib.Path(data_dir) / "other").exists():
    corpus.write(data_dir, name="other")
  update, lengths = programs.update, []

  def recorded(config, mesh):
    compiled = update(config, mesh)

    def call(numbers, state, memory, segments):
      lengths.append(jax.device_get(memory.length))
      return compiled(numbers, state, memory, segments)

    return call

  monkeypatch.setattr(programs, "update", recorded)
  changed = corpus.config(data_dir, **{"train.num_steps": 6} | change)
  assert loop.train(changed, str(begun))
  # Four segments of 8 tokens each.
  np.testing.assert_array_equal(lengths, [[32 if keeps else 0] * 4])


def test_another_width_is_refused_before_anything_is_written(data_dir, begun):
  saved = (begun / "config.json").read_text()
  with pytest.raises(errors.UserError, match="of another model"):
    loop.train(corpus.config(data_dir, **{"model.ff_dim": 16}), str(begun))
  assert (begun / "config.json").read_text() == saved
  assert steps(begun) == [4]


@pytest.mark.rest
def test_clusters_without_room_for_the_text_are_a_warning(
  data_dir, tmp_path, caplog
):
  config = corpus.config(
    data_dir,
    **{
      "train.num_steps": 4,
      "model.cutoffs": (16,),
      "model.cluster_capacities": (0.01,),
    },
  )
  loop.train(config, str(tmp_path))
  assert "Little room makes updates slow" in caplog.text


def test_the_loop_trains_on_what_the_stream_reads(
  data_dir, tmp_path, monkeypatch
):
  seen = []
  update = programs.update

  def recorded(config, mesh):
    compiled = update(config, mesh)

    def call(numbers, state, memory, segments):
      seen.append(jax.device_get(segments))
      return compiled(numbers, state, memory, segments)

    return call

  monkeypatch.setattr(programs, "update", recorded)
  config = corpus.config(data_dir)
  loop.train(config, str(tmp_path))
  stream = streams.TrainStream(
    token_file.open_split(f"{data_dir}/{corpus.NAME}", "train"),
    num_lanes=4,
    segment_len=8,
    resets="wrap",
  )
  whole = stream.read(0, 12, slice(None))
  read = jax.tree.map(lambda *chunks: np.concatenate(chunks), *seen)
  assert len(jax.tree.leaves(whole)) == 3
  jax.tree.map(np.testing.assert_array_equal, read, whole)
