"""A run's checkpoint as programs that need JAX alone.

`--mode=export --format=stablehlo` writes a folder with two functions, which
`jax.export` has made StableHLO for CPU and TPU, and what they are called with:

    score.stablehlo  (weights, state, inputs, targets) -> (nll, state)
    step.stablehlo   (weights, state, tokens, resets) -> (log_probs, state)
    arrays.npz       weights and first states
    model.json       names, shapes and types of all of them
    vocabulary/      how text becomes tokens

Weights and states are lists of arrays. Shapes are fixed: `score` reads segments
as `config.score` says, and `step` reads single tokens, with the lanes and the
memory of `config.generate`.

Shapes: B lanes, T tokens of a segment, V vocabulary.
"""

import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import evaluation_fields
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.importers import import_run
from transformer_xl.text import language_model
from transformer_xl.text import streaming
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

FORMAT = 1
PLATFORMS = ("cpu", "tpu")

# The arrays of parameters or of a state, in an order that stays the same.
Leaves = list[jax.Array]


class Function(NamedTuple):
  """A function to export, and its first arguments."""

  # Takes weights and a state, then arrays of the shapes in `inputs`; returns an
  # array and the next state.
  call: Callable[..., tuple[jax.Array, Leaves]]
  weights: Leaves
  state: Leaves
  inputs: dict[str, jax.ShapeDtypeStruct]
  output: str  # The name of the array that it returns.
  settings: metrics_log.Json  # How it reads.


def export(workdir: str, target: str, config: schema.ExperimentConfig) -> None:
  """Writes the folder `target`, which does not exist yet.

  The checkpoint is the one that `config.eval` names.

  Raises:
    UserError: the run has no checkpoint, its model cannot read segments of
      these lengths, or a package is missing.
  """
  if importlib.util.find_spec("flatbuffers") is None:
    raise errors.UserError(
      "--format=stablehlo needs the package flatbuffers, in which JAX writes "
      f"exported functions: {errors.install('stablehlo')}"
    )
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  # A kernel is for one platform alone.
  config = load.replaced(config, {"model.attention": "xla"})
  trained = trained_model.load_on_one_device(config, workdir)

  def prepared(
    options: schema.GenerateConfig | evaluation_fields.ScoreConfig,
  ) -> language_model.LanguageModel:
    lengths = language_model.lengths(options)
    return language_model.make(trained, vocabulary, source=workdir, **lengths)

  score_lanes = config.score.batch_size
  step_lanes = config.generate.num_samples
  functions = {
    "score": scoring(prepared(config.score), num_lanes=score_lanes),
    "step": stepping(prepared(config.generate), num_lanes=step_lanes),
  }
  with import_run.new_folder(target) as folder:
    local = pathlib.Path(storage.local(folder))
    arrays: dict[str, jax.Array] = {}
    entries = {}
    for name, function in functions.items():
      (local / f"{name}.stablehlo").write_bytes(_serialized(function))
      entries[name] = {
        "file": f"{name}.stablehlo",
        "weights": [_add(leaf, arrays) for leaf in function.weights],
        "state": [_add(leaf, arrays) for leaf in function.state],
        "inputs": {n: _described(one) for n, one in function.inputs.items()},
        "output": function.output,
        "settings": function.settings,
      }
    about = {
      "format": FORMAT,
      "platforms": PLATFORMS,
      "jax": jax.__version__,
      "checkpoint_step": trained.step,
      "vocab_size": config.model.vocab_size,
      "functions": entries,
      "arrays": {name: _described(leaf) for name, leaf in arrays.items()},
    }
    text = json.dumps(about, indent=1) + "\n"
    (local / "model.json").write_text(text, "utf-8")
    with open(local / "arrays.npz", "wb") as file:
      values = {name: _for_numpy(leaf) for name, leaf in arrays.items()}
      np.savez(file, allow_pickle=False, **values)
    source = pathlib.Path(storage.local(workdir), run_record.VOCABULARY)
    run_record.keep_vocabulary(str(source), folder)


def scoring(model: language_model.LanguageModel, *, num_lanes: int) -> Function:
  """The losses of a segment's targets, as `--mode=score` computes them.

  That mode reads `config.score.prefix` before a text.

  `inputs` and `targets` are ids [B, T], and `nll` [B, T] is in nats.
  """
  reader = model.reader
  weights, weights_tree = jax.tree.flatten(model.frozen)
  state, state_tree = jax.tree.flatten(model.start(num_lanes))

  def score(
    weights: Leaves, state: Leaves, inputs: jax.Array, targets: jax.Array
  ) -> tuple[jax.Array, Leaves]:
    nll, after = reader.nll(
      jax.tree.unflatten(weights_tree, weights),
      jax.tree.unflatten(state_tree, state),
      inputs,
      targets,
    )
    return nll, jax.tree.leaves(after)

  ids = jax.ShapeDtypeStruct((num_lanes, reader.segment_len), jnp.int32)
  inputs = {"inputs": ids, "targets": ids}
  return Function(score, weights, state, inputs, "nll", model.settings())


def stepping(
  model: language_model.LanguageModel, *, num_lanes: int
) -> Function:
  """The log-probabilities of every next token after one more token in a lane.

  `tokens` are ids [B, 1]; `resets` [B, 1] is True where a token is the first of
  a document; `log_probs` is [B, 1, V].
  """
  reader, frozen, first = model.reader.for_tokens(
    model.frozen, model.start(num_lanes)
  )
  weights, weights_tree = jax.tree.flatten(frozen)
  state, state_tree = jax.tree.flatten(first)

  def step(
    weights: Leaves, state: Leaves, tokens: jax.Array, resets: jax.Array
  ) -> tuple[jax.Array, Leaves]:
    after, log_probs = streaming.step(
      jax.tree.unflatten(weights_tree, weights),
      jax.tree.unflatten(state_tree, state),
      tokens,
      resets,
      reader=reader,
    )
    return log_probs, jax.tree.leaves(after)

  inputs = {
    "tokens": jax.ShapeDtypeStruct((num_lanes, 1), jnp.int32),
    "resets": jax.ShapeDtypeStruct((num_lanes, 1), jnp.bool_),
  }
  return Function(step, weights, state, inputs, "log_probs", model.settings())


def _serialized(function: Function) -> bytes:
  """The function as StableHLO for all platforms, with its signature."""
  exported = jax.export.export(jax.jit(function.call), platforms=PLATFORMS)
  arguments = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
    (function.weights, function.state),
  )
  return bytes(exported(*arguments, *function.inputs.values()).serialize())


def _add(leaf: jax.Array, arrays: dict[str, jax.Array]) -> str:
  """Adds an array unless an equal one is there, and returns its name.

  Both functions have most weights in common.
  """
  digest = hashlib.sha256(f"{leaf.dtype} {leaf.shape}".encode())
  digest.update(np.asarray(leaf).tobytes())
  name = digest.hexdigest()[:16]
  arrays[name] = leaf
  return name


def _for_numpy(leaf: jax.Array) -> np.ndarray:
  """The array in a type that NumPy's files have: bfloat16 becomes float32."""
  is_narrow = leaf.dtype == jnp.bfloat16
  return np.asarray(leaf, np.float32 if is_narrow else None)


def _described(array: jax.Array | jax.ShapeDtypeStruct) -> metrics_log.Json:
  return {"shape": list(array.shape), "dtype": str(array.dtype)}
