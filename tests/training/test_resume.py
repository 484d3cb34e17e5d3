"""A run in parts is the run in one piece, bit for bit, however it was cut."""

import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.training import hooks
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
TIMING = {"tokens_per_second", "mfu"}
EVERYTHING = {
  "model.dropout_rate": 0.1,
  "model.attention_dropout_rate": 0.1,
  "train.num_steps": 72,  # Two epochs and a part of the third.
  "train.segments_per_call": 4,
  "train.mem_len_low": 0,
  "train.accumulation_steps": 2,
  "train.ema_decay": 0.9,
  "train.schedule": "cosine",
  "train.warmup_steps": 5,
  "train.log_every_steps": 12,
  "train.eval_every_steps": 24,
  "checkpoint.every_steps": 8,
}

# What regularises and averages, see docs/ptb.md, and what
# experiments/ptb_published.py adds: drawn lengths, text that is read again.
PUBLISHED = {
  **EVERYTHING,
  "model.encoding": "relative_tied",
  "model.locked_dropout": True,
  "model.output_dropout_rate": 0.2,
  "model.projection_dropout_rate": 0.1,
  "model.embedding_dropout_rate": 0.1,
  "model.weight_dropout_rate": 0.1,
  "train.activation_penalty": 0.1,
  "train.temporal_activation_penalty": 0.1,
  "train.segment_len_std": 1.0,
  "train.context_len": 8,
  "train.mem_len": 0,
  "train.mem_len_low": -1,
  "train.embedding_rate_factor": 2.0,
  "train.l2_penalty": 1e-4,
  "train.ema_decay": 0.0,
  "train.asgd_start_step": 30,
  "train.average_rate_factor": 0.5,
  "eval.context_len": 8,
  "eval.mem_len": (0,),
  "eval.parameters": "asgd",
}


def lines(workdir):
  path = pathlib.Path(workdir) / "metrics.jsonl"
  records = map(json.loads, path.read_text().splitlines())
  return [
    {name: value for name, value in record.items() if name not in TIMING}
    for record in records
  ]


def newest(workdir, config):
  """State, memory and metadata of the newest checkpoint."""
  mesh = mesh_lib.make_mesh(config.mesh)
  checkpoints = checkpoint.Checkpoints(str(workdir), config.checkpoint)
  restored = checkpoints.restore_newest(
    *programs.sharded_abstract_state(config.recipe, mesh)
  )
  checkpoints.close()
  return restored


def assert_same_run(one, other, config):
  assert lines(one) == lines(other)
  states = newest(one, config), newest(other, config)
  assert int(states[0].state.step) == config.train.num_steps
  jax.tree.map(np.testing.assert_array_equal, states[0][:2], states[1][:2])
  assert states[0].metadata == states[1].metadata


def train_until(step, config, workdir):
  """Trains until the loop is asked to stop, after so many updates."""
  due = hooks.Saving.is_due

  def is_due(self, now):
    if now == step:
      self._stop.requested = self._stop._received = True
    return due(self, now)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hooks.Saving, "is_due", is_due)
    with pytest.raises(errors.StoppedError):
      loop.train(config, str(workdir))


def assert_same_in_parts(config, folder, *stops):
  """Compares a run that was stopped with one in one piece; returns the latter.

  Both are folders below `folder`.
  """
  whole, parts = folder / "whole", folder / "parts"
  assert loop.train(config, str(whole))
  for step in stops:
    train_until(step, config, parts)
    assert int(newest(parts, config).state.step) == step
  assert loop.train(config, str(parts))
  assert_same_run(whole, parts, config)
  return str(whole)


# Saves take most of a tiny run's time.
SELDOM_SAVED = {"checkpoint.every_steps": 24}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("updates", "stops"),  # Between log lines; in the second and third epoch.
  [
    (EVERYTHING, [52]),
    pytest.param(PUBLISHED, [28, 52], marks=pytest.mark.rest),
  ],
  ids=["all", "published"],
)
def test_a_run_in_parts_is_the_run_in_one(updates, stops, data_dir, tmp_path):
  config = corpus.config(data_dir, **updates | SELDOM_SAVED)
  whole = assert_same_in_parts(config, tmp_path, *stops)
  every = config.train.eval_every_steps
  evaluated = [r["step"] for r in lines(whole) if "split" in r]
  assert evaluated == list(range(every, 73, every))


def start(workdir, flags):
  """Starts the command line; what it says is in WORKDIR.log."""
  command = [sys.executable, "-m", "transformer_xl.main"]
  command += ["--config=experiments/base.py", f"--workdir={workdir}", *flags]
  environment = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  with open(f"{workdir}.log", "ab") as log:
    return subprocess.Popen(
      command, cwd=ROOT, stdout=log, stderr=log, env=environment
    )


def wait_for_step(workdir, step, process):
  """Returns as soon as the log has come so far."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  while process.poll() is None:
    if path.exists() and any(r["step"] >= step for r in lines_so_far(path)):
      return
    time.sleep(0.01)
  raise AssertionError(pathlib.Path(f"{workdir}.log").read_text())


def lines_so_far(path):
  for line in path.read_text().splitlines():
    if line.endswith("}"):
      yield json.loads(line)


def finish(process, workdir, status=0):
  try:
    assert process.wait(300) == status, pathlib.Path(
      f"{workdir}.log"
    ).read_text()
  finally:
    process.kill()
