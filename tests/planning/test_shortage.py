"""A device without memory is answered with settings that need less."""

import pathlib
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tests import corpus
from tests import tiny
from transformer_xl.config import load
from transformer_xl.planning import shortage

ROOT = pathlib.Path(__file__).parents[2]


def config(**updates):
  return load.from_config_dict(tiny.config_dict(**updates))


def exhaust(*arguments):
  del arguments
  return jnp.zeros((1 << 46,), jnp.int8)


def exhausted():
  with pytest.raises(jax.errors.JaxRuntimeError) as caught:
    exhaust()
  return caught.value


@pytest.mark.some(1)
@pytest.mark.parametrize("vocab_size", [0, 23])
def test_training_names_what_an_update_holds_and_what_needs_less(
  tmp_path, vocab_size
):
  updates = {
    "data.dir": str(corpus.write(tmp_path)),
    "data.name": corpus.NAME,
    "model.vocab_size": vocab_size,
    "train.segments_per_call": 1,
  }
  text = shortage.explain(config(**updates), "train", exhausted())
  assert "70368744177664 bytes" in text
  assert " GiB on each device" in text
  assert "first: --config.model.remat=attention; or " in text
  assert "--config.train.accumulation_steps=2" in text


@pytest.mark.parametrize(
  ("mode", "field"),
  [
    ("generate", "generate.num_samples"),
    ("score", "score.batch_size"),
    ("eval", "eval.batch_size"),
    ("recl", "eval.batch_size"),
    ("recl", "eval.segment_len, --config.analysis.contexts"),
    ("attention", "eval.segment_len"),
    ("eval_speed", "analysis.speed_lens"),
  ],
)
def test_other_modes_name_their_own_sizes(mode, field):
  text = shortage.explain(config(), mode, exhausted())
  assert f"--config.{field}" in text
  assert "train." not in text


@pytest.mark.parametrize(
  ("mode", "fields"),
  [
    ("study", "eval.batch_size, --config.eval.segment_len, --config.eval.mem"),
    ("paper", "eval.batch_size, --config.eval.segment_len, --config.eval.mem"),
    ("ablation", "eval.batch_size, --config.analysis.attention_lens."),
  ],
)
def test_modes_that_train_name_what_training_needs_less_with(mode, fields):
  text = shortage.explain(config(), mode, exhausted())
  assert "first: --config.model.remat=attention; or " in text
  assert "Use another --workdir" in text
  assert f"lower one of --config.{fields}" in text


@pytest.mark.parametrize(
  "error",
  [
    jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 bytes."),
    MemoryError("Unable to allocate 9 GiB"),
  ],
)
def test_every_way_to_say_it_is_known(error):
  assert f"memory ({error})" in shortage.explain(config(), "eval", error)


@pytest.mark.parametrize(
  "error",
  [jax.errors.JaxRuntimeError("INTERNAL: a bug"), ValueError("Out of memory")],
)
def test_other_errors_are_not_explained(error):
  assert shortage.explain(config(), "train", error) is None


# In a process of its own, since the command line defines flags.
COMMAND = """
from tests.planning import test_shortage
from transformer_xl import errors
from transformer_xl import main
from transformer_xl.planning import shortage

main.MODES["score"] = main.Mode("planning.shortage", "", "", function="exhaust")
shortage.exhaust = test_shortage.exhaust
try:
  main._run("score", test_shortage.config(), "workdir")
except errors.UserError as error:
  print(error)
"""


@pytest.mark.rest
def test_a_mode_that_runs_out_of_memory_ends_in_a_users_error():
  done = subprocess.run(
    [sys.executable, "-c", COMMAND],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert "lower one of --config.score" in done.stdout, done.stderr


@pytest.mark.rest
def test_a_model_larger_than_the_machine_ends_before_the_first_update(tmp_path):
  """Reading its step would wait for ever, since its parameters have no room."""
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir, **{"model.ff_dim": 10**9})
  room = 16 << 30  # Bytes. The parameters would take 128 GB.
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "transformer_xl.main",
      "--config=experiments/base.py",
      f"--workdir={tmp_path}/run",
      *flags,
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=200,
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (room, room)),
  )
  assert done.returncode == 2, done.stderr
  *_, last = done.stderr.splitlines()
  assert last.startswith("error: a device has too little memory (")
