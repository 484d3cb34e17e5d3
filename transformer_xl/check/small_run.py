"""A small model: 20 updates, an evaluation and a generation, and a resume.

It trains with the functions of every run, with dropout, memory and an adaptive
softmax, on a text that is made here. A stored reference has the losses and the
tokens that an x86-64 processor computed.
"""

import functools
import importlib.resources
import json
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import finding
from transformer_xl.check import on_mesh
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.evaluation import evaluator
from transformer_xl.text import decoding
from transformer_xl.text import language_model
from transformer_xl.training import programs
from transformer_xl.training import step
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import checksums
from transformer_xl.workdir import run_state
from transformer_xl.workdir import trained_model

REFERENCE = "reference.json"
UPDATES = 20  # In two calls, between which a run can stop.
# Several times what other meshes and processors differ by, in roundings.
# bfloat16 adds up in another order on a TPU.
LIMITS = {"float32": 100.0, "bfloat16": 1.0}
_FOLDER = "check_of_resume"  # In the workdir, and removed again.
_NUM_TOKENS = 24
_MEM_LEN = 32
_MODEL = {
  "vocab_size": 256,
  "num_layers": 2,
  "model_dim": 32,
  "num_heads": 4,
  "head_dim": 8,
  "ff_dim": 64,
  "cutoffs": (64,),
  "cluster_capacities": (0.5,),
  "div_val": 2,
  "dropout_rate": 0.1,
  "attention_dropout_rate": 0.1,
  "init_std": 0.1,
}
_TRAIN = {
  "num_steps": UPDATES,
  "batch_size": 8,
  "segment_len": 16,
  "mem_len": 16,
  "segments_per_call": UPDATES // 2,
  "learning_rate": 3e-3,
  "schedule": "constant",
}


class Run(NamedTuple):
  """What a run computed.

  Attributes:
    losses: mean loss of each update in nats, [20].
    evaluation: mean loss of the evaluation in nats, [1].
    tokens: a continuation of a prompt, drawn with a fixed seed.
    checksums: of parameters, optimizer and memory after the last update.
  """

  losses: np.ndarray
  evaluation: np.ndarray
  tokens: np.ndarray
  checksums: dict[str, str]


def run(
  meshes: Sequence[jax.sharding.Mesh], workdir: str
) -> list[finding.Finding]:
  """Checks runs on every mesh, and a resumed run on the first."""
  findings: list[finding.Finding] = []
  for mesh in meshes:
    where = on_mesh.describe(mesh)
    logging.info("Training a small model on %s.", where)
    resumes_in = workdir if mesh is meshes[0] else None
    check = functools.partial(check_run, "float32", mesh, resumes_in)
    findings += finding.attempt("training", f"float32, {where}", check)
  check = functools.partial(check_run, "bfloat16", meshes[0], None)
  where = on_mesh.describe(meshes[0])
  findings += finding.attempt("training", f"bfloat16, {where}", check)
  return findings


def check_run(
  dtype: str, mesh: jax.sharding.Mesh, workdir: str | None
) -> list[finding.Finding]:
  """Compares a run with the reference, and with a resumed one in `workdir`."""
  with on_mesh.exact_products(dtype):
    whole = train(dtype, mesh)
    findings = compare(whole, read_reference()[dtype], dtype, mesh)
    if workdir is not None:
      resumed = train(dtype, mesh, workdir=workdir)
      found = compare_resumed(resumed, whole)
      is_gpu = mesh.devices.flat[0].platform == "gpu"
      if is_gpu and not found.passed:
        # Kernels that add up in a changing order make any two runs differ.
        again = compare_resumed(train(dtype, mesh), whole)
        if not again.passed:
          case = (
            f"not compared: two whole runs differ in {again.error:.0f} arrays "
            "and losses; set XLA_FLAGS=--xla_gpu_deterministic_ops=true to "
            "compare"
          )
          found = found._replace(case=case, limit=math.inf)
      findings.append(found)
  return findings


def train(
  dtype: str, mesh: jax.sharding.Mesh, *, workdir: str | None = None
) -> Run:
  """Trains, evaluates and generates on a mesh.

  With a workdir, the run is saved there after half of the updates, and goes on
  from what is read back.
  """
  config = make_config(dtype)
  file = token_file.TokenFile(make_text(), np.zeros(1, np.int64), "", {})
  stream = streams.TrainStream(
    file,
    num_lanes=config.train.batch_size,
    segment_len=config.train.segment_len,
    resets=streams.reset_rule(config.data, config.model),
  )
  with jax.set_mesh(mesh):
    create_state, create_memory = programs.creators(config.recipe, mesh)
    state = create_state()
    memory = create_memory()
    update = programs.update(config.recipe, mesh)
    numbers = programs.numbers(config.recipe)
    losses = []
    for first in (0, UPDATES // 2):
      if first and workdir:
        state, memory = save_and_restore(
          os.path.join(workdir, _FOLDER),
          config.checkpoint,
          run_state.RunState(state, memory),
          target=programs.sharded_abstract_state(config.recipe, mesh),
        )
      segments = streams.device_segments(
        stream, first, UPDATES // 2, mesh_lib.segments(mesh)
      )
      state, memory, metrics = update(numbers, state, memory, segments)
      sums = jax.device_get(metrics.sums)
      losses.append(sums.nll / sums.num_tokens)
    # With a longer memory than in training.
    evaluated = evaluator.Evaluator(config.scoring, mesh, mem_len=_MEM_LEN)
    # Instead of the split of a dataset on disk.
    evaluated.stream = streams.EvalStream(
      file,
      num_lanes=config.eval.batch_size,
      segment_len=config.eval.segment_len,
      warmup_len=_MEM_LEN,
      resets=streams.reset_rule(config.data, config.model),
    )
    score = evaluated(state.params)
    trained = trained_model.TrainedModel(
      config, mesh, state.params, step=UPDATES
    )
    return Run(
      np.concatenate(losses),
      np.array([score.nll / score.num_tokens]),
      generate(trained),
      checksums.of({"state": state, "memory": memory}),
    )


def save_and_restore(
  folder: str,
  settings: schema.CheckpointConfig,
  run: run_state.RunState,
  *,
  target: step.Carry,
) -> step.Carry:
  """Writes a checkpoint, and reads it into new arrays, sharded as `target`."""

  def remove() -> None:
    if jax.process_index() == 0:
      epath.Path(folder).rmtree(missing_ok=True)
    multihost_utils.sync_global_devices("no checkpoint of the check is left")

  remove()
  with checkpoint.Checkpoints(folder, settings) as checkpoints:
    checkpoints.save(run)
    checkpoints.wait()
    restored = checkpoints.restore_newest(*target)
  assert restored is not None
  assert restored.memory is not None
  remove()
  return restored.state, restored.memory


def generate(trained: trained_model.TrainedModel) -> np.ndarray:
  """Tokens that are drawn after the start of the text."""
  options = trained.config.generate
  model = language_model.make(
    trained,
    vocabulary.ByteVocabulary(),
    source="check",
    **language_model.lengths(options),
  )
  prompt = make_text()[:40].astype(model.vocabulary.dtype)
  parts = decoding.stream(
    model,
    decoding.empty_state(model).extended(prompt),
    config=options,
    keys=decoding.sample_keys(0, 1),
  )
  *_, samples = parts
  return np.asarray(samples.tokens[0])


def make_config(dtype: str) -> schema.ExperimentConfig:
  """The configuration of the small run."""
  config = load.default()
  config.model.update({**_MODEL, "dtype": dtype})
  config.train.update(_TRAIN)
  config.eval.update(
    {"batch_size": 8, "segment_len": 16, "mem_len": (_MEM_LEN,)}
  )
  config.generate.update(
    {
      "num_tokens": _NUM_TOKENS,
      "tokens_per_call": _NUM_TOKENS,
      "segment_len": 16,
      "mem_len": _MEM_LEN,
      "temperature": 1.0,
    }
  )
  return load.from_config_dict(config)


def make_text() -> np.ndarray:
  """Bytes of which three of four repeat the seventh before them.

  A linear congruential generator draws the others: the same numbers with every
  version of every library.
  """
  state = 1
  tokens: list[int] = []
  for index in range(4096):
    state = (1103515245 * state + 12345) % 2**31
    bits = state >> 16
    is_repeated = index >= 7 and bits % 4 != 0
    tokens.append(tokens[index - 7] if is_repeated else (bits >> 2) % 256)
  return np.array(tokens, np.uint8)


def read_reference() -> dict[str, dict[str, list[float]]]:
  """What an x86-64 processor computed, by format."""
  path = importlib.resources.files(__package__) / REFERENCE
  return json.loads(path.read_text("utf-8"))


def compare(
  found: Run,
  expected: dict[str, list[float]],
  dtype: str,
  mesh: jax.sharding.Mesh,
) -> list[finding.Finding]:
  """Compares losses, evaluation and tokens with the reference."""
  case = f"{dtype}, {on_mesh.describe(mesh)}"
  findings = [
    finding.compare(
      {"loss": getattr(found, name)},
      {"loss": np.array(expected[name])},
      part=part,
      case=case,
      limit=LIMITS[dtype],
      dtype=dtype,
    )
    for part, name in (("training", "losses"), ("evaluation", "evaluation"))
  ]
  if dtype == "float32":  # Rounding to bfloat16 may draw others.
    different = found.tokens != np.array(expected["tokens"])
    findings.append(
      finding.Finding("generation", case, float(different.sum()), 0)
    )
  return findings


def compare_resumed(resumed: Run, whole: Run) -> finding.Finding:
  """Counts the arrays and losses that differ in any bit after a stop."""
  different = int((resumed.losses != whole.losses).sum())
  different += sum(
    value != whole.checksums[name] for name, value in resumed.checksums.items()
  )
  return finding.Finding(
    "resume", "float32, arrays and losses that differ", different, 0
  )
