r"""Loading a large model in Python, and scoring and generating with it.

    python -m benchmarks.large_model --workdir=/tmp/large --dtype=float32

The model has the published WikiText-103 shape: 285,205,322 parameters, which
are random, and 267,735 words. The folder is made if it is not there. Each round
is a process of its own that loads, scores a text twice and continues a prompt
twice: the second time nothing is compiled. Then it does as many FLOPs as a
score takes in plain products of a segment with a layer's feed-forward matrices:
the least that this machine needs. Prints a line of JSON with medians of wall
and CPU seconds; compiling is in the first ones.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import transformer_xl
from transformer_xl import command_line
from transformer_xl.analysis import costs
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.experiments import wt103_large
from transformer_xl.importers import vocabulary
from transformer_xl.model import network
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record

NUM_WORDS = 267_735
SCORED_WORDS = 1_024
GENERATED_WORDS = 32
PROMPT_WORDS = 16

# Wall and CPU seconds ("wall" and "cpu") of each kind of work.
Seconds = dict[str, dict[str, float]]
Result = TypeVar("Result")


def define_flags() -> None:
  """Defines the flags of `main`."""
  flags.DEFINE_string("workdir", None, "Folder of the model.", required=True)
  flags.DEFINE_string("dtype", "float32", "Number format of a new folder.")
  flags.DEFINE_integer("rounds", 3, "Number of processes.", lower_bound=1)
  flags.DEFINE_bool("once", False, "Be such a process.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  if chosen.once:
    dtype, seconds = measure(chosen.workdir)
    print(json.dumps({"dtype": dtype, "seconds": seconds}))
    return
  command = [sys.executable, "-m", "benchmarks.large_model", "--once"]
  command.append(f"--workdir={chosen.workdir}")
  if not os.path.exists(chosen.workdir):
    make_folder(chosen.workdir, chosen.dtype)
  rounds = []
  for _ in range(chosen.rounds):
    ended = subprocess.run(
      command,
      check=True,
      stdout=subprocess.PIPE,
      env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"},
    )
    rounds.append(json.loads(ended.stdout))
  seconds = [each["seconds"] for each in rounds]
  result = {
    "benchmark": "large_model",
    "jax": jax.__version__,
    "cores": len(os.sched_getaffinity(0)),
    "dtype": rounds[0]["dtype"],
    "rounds": len(rounds),
    "scored_words": SCORED_WORDS,
    "generated_words": GENERATED_WORDS,
    "seconds": {kind: _medians(seconds, kind) for kind in seconds[0]},
  }
  print(json.dumps(result))


def make_folder(workdir: str, dtype: str) -> None:
  """Writes the folder of a run that would have trained the model."""
  settings = wt103_large.get_config()
  settings.model.update({"dtype": dtype, "vocab_size": NUM_WORDS})
  settings.data.name = "imported"
  settings.generate.mem_len = 1600
  settings.score.mem_len = 1600
  config = load_lib.from_config_dict(settings)
  os.makedirs(workdir)
  params = costs.random_params(config.model)
  params_writer.save(workdir, params, step=0)
  run_record.record(config, workdir)
  words = [f"w{index}" for index in range(NUM_WORDS - 2)]
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "words.txt")
    path.write_text("\n".join(["<eos>", "<unk>", *words]) + "\n", "utf-8")
    vocabulary.copy(str(path), workdir, size=NUM_WORDS)


def measure(workdir: str) -> tuple[str, Seconds]:
  """Loads, scores and generates, each but loading twice.

  Returns:
    The model's number format, and what each took.
  """
  draw = np.random.default_rng(0)
  # Smaller numbers are more frequent, as in text.
  ids = (NUM_WORDS - 2) * draw.random(SCORED_WORDS) ** 8
  words = [f"w{index}" for index in ids.astype(int)]
  text = " ".join(words)
  prompt = " ".join(words[:PROMPT_WORDS])
  seconds: Seconds = {}

  def timed(kind: str, work: Callable[[], Result]) -> Result:
    start = time.perf_counter()
    cpu_start = time.process_time()
    result = work()
    seconds[kind] = {
      "wall": time.perf_counter() - start,
      "cpu": time.process_time() - cpu_start,
    }
    return result

  model = timed("load", lambda: transformer_xl.load(workdir))
  for kind in ("first score", "score"):
    timed(kind, lambda: model.score([text]))
  for kind in ("first generation", "generation"):
    timed(
      kind,
      lambda: model.generate(prompt, num_tokens=GENERATED_WORDS, seed=0),
    )
  multiply = plain_products(model.config)
  timed("products", lambda: jax.block_until_ready(multiply()))
  return model.config.model.dtype, seconds


def plain_products(config: schema.ExperimentConfig) -> Callable[[], jax.Array]:
  """A compiled function with the FLOPs of a score, all of them in products."""
  model = config.model
  segment_len = config.score.segment_len
  flops = SCORED_WORDS * network.forward_flops_per_token(
    model,
    segment_len=segment_len,
    mem_len=config.score.mem_len,
    same_length=config.eval.same_length,
  )
  shape = (model.model_dim, model.ff_dim)
  num_turns = round(flops / (4 * segment_len * model.model_dim * model.ff_dim))
  rows = jnp.ones((segment_len, model.model_dim), model.dtype)
  inner = jnp.full(shape, 1 / model.model_dim, model.dtype)
  outer = jnp.full(shape[::-1], 1 / model.ff_dim, model.dtype)

  @jax.jit
  def turn(rows: jax.Array, inner: jax.Array, outer: jax.Array) -> jax.Array:
    return rows @ inner @ outer

  jax.block_until_ready(turn(rows, inner, outer))

  def multiply() -> jax.Array:
    result = rows
    for _ in range(num_turns):
      result = turn(result, inner, outer)
    return result

  return multiply


def _medians(rounds: list[Seconds], kind: str) -> dict[str, float]:
  return {
    clock: round(statistics.median(each[kind][clock] for each in rounds), 2)
    for clock in ("wall", "cpu")
  }


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
