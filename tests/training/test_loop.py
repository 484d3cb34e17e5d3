"""The training loop in one process: its order, its log, its end."""

import json
import math
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests import corpus
from tests import tiny
from tests.training import test_step
from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.training import log_window
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import lock
from transformer_xl.workdir import metrics_log

FIELDS = {
  "step",
  "tokens",
  "loss",
  "learning_rate",
  "gradient_norm",
  "tokens_per_second",
  "mfu",
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


def lines(workdir):
  path = pathlib.Path(workdir) / "metrics.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()]


def steps(workdir):
  folder = pathlib.Path(workdir) / checkpoint_items.DIRECTORY
  return sorted(int(path.name) for path in folder.iterdir())


def send_signal_at(step, monkeypatch, number=signal.SIGTERM):
  """Signals this process when the line of `step` is written."""
  write = metrics_log.Writer.write

  def written(self, record):
    write(self, record)
    if record["step"] == step and "split" not in record:
      signal.raise_signal(number)

  monkeypatch.setattr(metrics_log.Writer, "write", written)


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
  updates = {"train.num_steps": 6, "train.log_every_steps": 4}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path / "six"))
  assert [record["step"] for record in lines(tmp_path / "six")] == [4, 6]
  updates["train.num_steps"] = 2
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path / "two"))
  (record,) = lines(tmp_path / "two")
  assert record["step"] == 2
  assert math.isfinite(record["loss"])


def test_a_finished_run_does_nothing_more(data_dir, tmp_path):
  config = corpus.config(data_dir)
  assert loop.train(config, str(tmp_path))
  before = lines(tmp_path)
  assert loop.train(config, str(tmp_path))
  assert lines(tmp_path) == before
  assert steps(tmp_path) == [8, 12]


def test_two_runs_in_one_workdir_are_refused(data_dir, tmp_path):
  """Else the second starts anew while the first still saves."""
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  workdir = tmp_path / "run"
  with lock.locked(str(workdir)):
    with pytest.raises(errors.UserError, match="another process trains in"):
      loop.train(config, str(workdir))
    assert [path.name for path in workdir.iterdir()] == [".lock"]
  assert not list(workdir.iterdir())
  assert loop.train(config, str(workdir))
  assert steps(workdir) == [4]


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


def test_a_signal_ends_the_run_after_its_chunk_with_a_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(
    data_dir, **{"train.eval_every_steps": 2, "checkpoint.every_steps": 12}
  )
  send_signal_at(4, monkeypatch)
  assert not loop.train(config, str(tmp_path))
  assert steps(tmp_path)[-1] == 4
  assert [r["step"] for r in lines(tmp_path) if "split" in r] == [2]
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_in_the_last_chunk_is_no_leave_to_evaluate(
  data_dir, tmp_path, monkeypatch
):
  send_signal_at(12, monkeypatch)
  config = corpus.config(data_dir)
  assert not loop.train(config, str(tmp_path))
  assert steps(tmp_path)[-1] == 12
  monkeypatch.undo()
  assert loop.train(config, str(tmp_path))


def test_an_evaluation_that_a_signal_prevents_is_made_up_for(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(data_dir, **{"train.eval_every_steps": 4})
  loop.train(config, str(tmp_path / "whole"))
  send_signal_at(8, monkeypatch)
  assert not loop.train(config, str(tmp_path / "parts"))
  monkeypatch.undo()
  assert [r["step"] for r in lines(tmp_path / "parts")][-1] == 8
  assert loop.train(config, str(tmp_path / "parts"))

  def losses(name):
    records = [r for r in lines(tmp_path / name) if "split" in r]
    return [(record["step"], record["nll"]) for record in records]

  assert losses("parts") == losses("whole")
  assert len(losses("whole")) == 3


def test_an_owed_evaluation_ranks_its_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  updates = {
    "train.eval_every_steps": 4,
    "checkpoint.keep_latest": 1,
    "checkpoint.keep_best": 1,
  }
  score_until = evaluate.Evaluator.score_until
  scores = iter([3.0, 2.0, 2.0, 2.5])

  def scored(self, params, *, should_stop):
    score = score_until(self, params, should_stop=should_stop)
    return score and score._replace(nll=next(scores) * score.num_tokens)

  config = corpus.config(data_dir, **updates)
  send_signal_at(8, monkeypatch)
  monkeypatch.setattr(evaluate.Evaluator, "score_until", scored)
  assert not loop.train(config, str(tmp_path))
  monkeypatch.undo()
  monkeypatch.setattr(evaluate.Evaluator, "score_until", scored)
  # It is killed once more, between the checkpoint's loss and its metadata.
  write_json = metrics_log.write_json

  def killed(path, value):
    if path.endswith("metadata"):
      raise KeyboardInterrupt
    write_json(path, value)

  with monkeypatch.context() as patch:
    patch.setattr(metrics_log, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
      loop.train(config, str(tmp_path))
  assert loop.train(
    corpus.config(data_dir, **updates | {"train.num_steps": 8}), str(tmp_path)
  )
  evaluated = [(r["step"], r["nll"]) for r in lines(tmp_path) if "split" in r]
  assert evaluated == [(4, 3.0), (8, 2.0)]
  assert loop.train(config, str(tmp_path))
  assert next(scores, None) is None  # Step 8 was not scored again.
  best = corpus.config(data_dir, **updates | {"eval.checkpoint": "best"})
  assert evaluate.load(best, str(tmp_path)).step == 8
  assert steps(tmp_path) == [8, 12]


WAITING = """
import hashlib
from absl import logging
from transformer_xl.training import preemption

logging.use_absl_handler()
with preemption.StopSignal():
  print("waiting", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # As for the devices.
"""


def test_interrupts_are_answered_while_python_waits():
  with subprocess.Popen(
    [sys.executable, "-c", WAITING],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      assert process.stdout.readline() == "waiting\n"
      process.send_signal(signal.SIGINT)
      lines = [process.stderr.readline() for _ in range(2)]
      assert "SIGINT: stopping after this chunk, with a checkpoint" in lines[1]
      assert process.poll() is None
      process.send_signal(signal.SIGINT)
      (last,) = process.stderr.read().splitlines()
      assert last.startswith("error: interrupted twice;")
      assert process.wait() == command_line.INTERRUPTED
    finally:
      process.kill()


def test_a_stopped_run_says_where_it_is_saved(
  data_dir, tmp_path, monkeypatch, caplog
):
  send_signal_at(4, monkeypatch, signal.SIGINT)
  assert not loop.train(corpus.config(data_dir), str(tmp_path))
  *_, last = [r.getMessage() for r in caplog.records if r.name == "absl"]
  assert (
    last == f"Saved at step {steps(tmp_path)[-1]}; the same command continues."
  )


@pytest.mark.parametrize("num_steps", [12, 8])
def test_a_finished_run_says_that_there_is_nothing_to_do(
  data_dir, tmp_path, caplog, num_steps
):
  assert loop.train(corpus.config(data_dir), str(tmp_path))
  before = {path: path.read_bytes() for path in tmp_path.glob("*.json*")}
  assert len(before) == 2
  changed = {"train.num_steps": num_steps, "train.learning_rate": 0.5}
  caplog.set_level("INFO")
  assert loop.train(corpus.config(data_dir, **changed), str(tmp_path))
  assert f"train.num_steps={num_steps}: there is nothing to do" in caplog.text
  assert {path: path.read_bytes() for path in before} == before


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


def test_the_evaluation_of_a_run_is_that_of_its_checkpoint(data_dir, tmp_path):
  config = corpus.config(
    data_dir, **{"train.eval_every_steps": 12, "eval.split": "valid"}
  )
  loop.train(config, str(tmp_path))
  (card,) = evaluate.evaluate_checkpoint(config, str(tmp_path))
  last = lines(tmp_path)[-1]
  assert last["split"] == "valid"
  assert card["checkpoint_step"] == 12
  assert card["nll"] == last["nll"]


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
  assert test_step.distance(last, average) > 1e-3


def test_other_lanes_start_with_empty_memory_and_a_warning(
  data_dir, tmp_path, caplog
):
  loop.train(corpus.config(data_dir, **{"train.num_steps": 4}), str(tmp_path))
  config = corpus.config(data_dir, **{"train.batch_size": 8})
  assert loop.train(config, str(tmp_path))
  assert "memory starts empty" in caplog.text
  assert "continue elsewhere in the text" in caplog.text
  assert "config.train.batch_size 4 -> 8" in caplog.text
  assert steps(tmp_path)[-1] == 12


@pytest.mark.parametrize("loss_on", ["all", "recent_half"])
def test_tokens_and_speed_count_all_tokens_that_are_read(
  data_dir, tmp_path, monkeypatch, loss_on
):
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  add = log_window.Window.add

  def added(self, *args, **kwargs):
    now[0] += 2.0
    add(self, *args, **kwargs)

  monkeypatch.setattr(log_window.Window, "add", added)
  updates = {"train.loss_on": loss_on, "train.log_every_steps": 4}
  short = corpus.config(data_dir, **updates | {"train.num_steps": 4})
  assert loop.train(short, str(tmp_path))
  wide = corpus.config(data_dir, **updates | {"train.batch_size": 8})
  assert loop.train(wide, str(tmp_path))
  records = lines(tmp_path)
  tokens = [4 * 4 * 8, 4 * 4 * 8 + 4 * 8 * 8, 4 * 4 * 8 + 8 * 8 * 8]
  assert [record["tokens"] for record in records] == tokens
  speeds = [record["tokens_per_second"] for record in records]
  assert speeds[1:] == [2 * 8 * 8 / 2.0] * 2  # Two updates in 2 s.


def test_speed_with_several_segment_lengths_is_never_too_high(
  data_dir, tmp_path, monkeypatch
):
  """Each chunk takes 2 s and each compilation 30 s, by this clock."""
  now, lens = [0.0], {"train.segment_lens": (8, 4, 6)}
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  leave_untimed, add = log_window.Window.leave_untimed, log_window.Window.add

  def compiled(self):
    now[0] += 30.0
    leave_untimed(self)

  def added(self, *args, **kwargs):
    now[0] += 2.0
    add(self, *args, **kwargs)

  monkeypatch.setattr(log_window.Window, "leave_untimed", compiled)
  monkeypatch.setattr(log_window.Window, "add", added)
  assert loop.train(corpus.config(data_dir, **lens), str(tmp_path))
  speeds = [record["tokens_per_second"] for record in lines(tmp_path)]
  found = {speed for speed in speeds if speed is not None}
  assert found
  assert found <= {2 * 4 * length / 2.0 for length in (8, 4, 6)}


@pytest.mark.parametrize(
  ("change", "keeps"),
  [
    ({"train.learning_rate": 1e-3}, True),
    ({"train.segment_len": 4}, False),
    ({"data.name": "other"}, False),
    ({"data.rotate_epochs": True}, False),
  ],
)
def test_memory_is_kept_only_where_its_text_precedes(
  data_dir, tmp_path, monkeypatch, change, keeps
):
  if "data.name" in change and not (pathlib.Path(data_dir) / "other").exists():
    corpus.write(data_dir, name="other")
  loop.train(corpus.config(data_dir, **{"train.num_steps": 4}), str(tmp_path))
  update, lengths = programs.update, []

  def recorded(config, mesh):
    compiled = update(config, mesh)

    def call(state, memory, segments):
      lengths.append(jax.device_get(memory.length))
      return compiled(state, memory, segments)

    return call

  monkeypatch.setattr(programs, "update", recorded)
  changed = corpus.config(data_dir, **{"train.num_steps": 6} | change)
  assert loop.train(changed, str(tmp_path))
  np.testing.assert_array_equal(lengths, [[8 if keeps else 0] * 4])


def test_another_width_is_refused_before_anything_is_written(
  data_dir, tmp_path
):
  loop.train(corpus.config(data_dir, **{"train.num_steps": 4}), str(tmp_path))
  saved = (tmp_path / "config.json").read_text()
  with pytest.raises(errors.UserError, match="of another model"):
    loop.train(corpus.config(data_dir, **{"model.ff_dim": 16}), str(tmp_path))
  assert (tmp_path / "config.json").read_text() == saved
  assert steps(tmp_path) == [4]


@pytest.mark.parametrize("room", [0.99, 0.01])
def test_clusters_without_room_for_the_text_are_a_warning(
  room, data_dir, tmp_path, caplog
):
  config = corpus.config(
    data_dir,
    **{
      "train.num_steps": 4,
      "model.cutoffs": (16,),
      "model.cluster_capacities": (room,),
    },
  )
  loop.train(config, str(tmp_path))
  assert ("Little room makes updates slow" in caplog.text) == (room < 0.1)


def test_the_loop_trains_on_what_the_stream_reads(
  data_dir, tmp_path, monkeypatch
):
  seen = []
  update = programs.update

  def recorded(config, mesh):
    compiled = update(config, mesh)

    def call(state, memory, segments):
      seen.append(jax.device_get(segments))
      return compiled(state, memory, segments)

    return call

  monkeypatch.setattr(programs, "update", recorded)
  config = corpus.config(data_dir)
  loop.train(config, str(tmp_path))
  stream = streams.TrainStream(
    token_file.open_split(f"{data_dir}/{corpus.NAME}", "train"),
    num_lanes=4,
    segment_len=8,
    resets="wrap",
    rotate=False,
    seed=0,
  )
  whole = stream.read(0, 12, slice(None))
  read = jax.tree.map(lambda *chunks: np.concatenate(chunks), *seen)
  assert len(jax.tree.leaves(whole)) == 3
  jax.tree.map(np.testing.assert_array_equal, read, whole)
