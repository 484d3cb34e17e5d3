"""This package's side of the speed benchmarks.

A runner compiles when it is constructed. Each call then runs segments with the
same functions as training, evaluation and generation.
"""

import dataclasses
import functools
import time
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import workload
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment
from transformer_xl.evaluation import evaluator
from transformer_xl.experiments import base
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.planning import plan
from transformer_xl.text import language_model
from transformer_xl.text import sampling
from transformer_xl.training import programs


class Runner(Protocol):
  """Runs `count` segments per call; compiled, with a full memory.

  Attributes:
    compile_seconds: What compiling took.
    peak_bytes: What XLA plans for arguments, results and temporaries.
  """

  compile_seconds: float
  peak_bytes: int

  def __call__(self) -> float:
    """Runs the segments; returns the last mean loss, or 0 without losses."""


def make(work: workload.Workload, *, count: int) -> Runner:
  """Creates the runner of a workload's task."""
  runners = {
    "train": _Training,
    "evaluate": _Evaluation,
    "generate": _Generation,
  }
  return runners[work.task](work, count)


def device_bytes() -> int:
  """The most that a GPU or TPU has held; 0 on a CPU."""
  statistics = jax.local_devices()[0].memory_stats() or {}
  return statistics.get("peak_bytes_in_use", 0)


def experiment(work: workload.Workload) -> schema.ExperimentConfig:
  """The workload as a configuration: Adam, clipping, no dropout."""
  config = base.get_config()
  config.model.update(
    {
      "vocab_size": work.vocab_size,
      "num_layers": work.num_layers,
      "model_dim": work.model_dim,
      "num_heads": work.num_heads,
      "head_dim": work.model_dim // work.num_heads,
      "ff_dim": work.ff_dim,
      "encoding": work.encoding,
      "dropout_rate": 0.0,
      "same_length_window": "mem_len",
      "dtype": work.dtype,
    }
  )
  lengths = {
    "batch_size": work.batch_size,
    "segment_len": work.segment_len,
    "mem_len": work.mem_len,
  }
  config.train.update(lengths)
  config.eval.update({**lengths, "mem_len": (work.mem_len,)})
  return load.from_config_dict(config)


class _Compiled:
  """A function compiled ahead of time, with compile time and peak memory."""

  def __init__(self, function: Any, *arguments: Any):
    start = time.perf_counter()
    self.call = function.lower(*arguments).compile()
    self.seconds = time.perf_counter() - start
    self.peak_bytes = plan.held_bytes(self.call)


class _Training:
  """Updates with Adam and gradient clipping."""

  def __init__(self, work: workload.Workload, count: int):
    config = experiment(work)
    self._mesh = mesh_lib.make_mesh(config.mesh)
    with jax.set_mesh(self._mesh):
      creators = programs.creators(config.recipe, self._mesh)
      create_state, create_memory = creators
      state = create_state()
      memory = _full(create_memory(), work.mem_len)
      self._carry = state, memory
      self._segments = _segments(work, self._mesh, count)
      update = programs.update(config.recipe, self._mesh)
      self._numbers = programs.numbers(config.recipe)
      compiled = _Compiled(update, self._numbers, state, memory, self._segments)
    self._update = compiled.call
    self.compile_seconds = compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self) -> float:
    state, memory, metrics = self._update(
      self._numbers, *self._carry, self._segments
    )
    self._carry = state, memory
    sums = jax.device_get(metrics.sums)
    return float(sums.nll[-1] / sums.num_tokens[-1])


class _Evaluation:
  """Scores segments, as in `--mode=eval`."""

  def __init__(self, work: workload.Workload, count: int):
    config = experiment(work)
    mesh = mesh_lib.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
      made = evaluator.Evaluator(config.scoring, mesh, mem_len=work.mem_len)
      self._frozen = made.mesh_reader.freeze(_params(config))
      self._memory = _full(made.mesh_reader.start(self._frozen), work.mem_len)
      self._segments = _segments(work, mesh, count)
      compiled = _Compiled(
        made.score_segments, self._frozen, self._memory, self._segments
      )
    self._score = compiled.call
    self.compile_seconds = compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self) -> float:
    self._memory, sums = self._score(self._frozen, self._memory, self._segments)
    return float(sums.nll / sums.num_tokens)


class _Generation:
  """Draws the likeliest tokens one by one, as in `--mode=generate`."""

  def __init__(self, work: workload.Workload, count: int):
    config = experiment(work)
    options = dataclasses.replace(
      config.generate, temperature=0.0, tokens_per_call=count
    )
    settings = sampling.settings_of(options)
    reader = reader_lib.Reader(
      config.model,
      mem_len=work.mem_len,
      segment_len=options.segment_len,
      clamp_len=0,
      same_length=False,
    )
    frozen = jax.jit(reader.freeze)(_params(config))
    state = _full(reader.start(frozen, batch_size=1), work.mem_len)
    reader, frozen, state = language_model.for_tokens(reader, frozen, state)
    self._drawing = sampling.begin(
      state,
      jnp.zeros((1, 1, work.model_dim), reader.config.dtype),
      np.zeros((sampling.window(settings),), np.int32),
      np.int32(0),
      num_samples=work.batch_size,
    )
    decode = jax.jit(
      functools.partial(sampling.decode, reader=reader, settings=settings),
      donate_argnums=1,
    )
    keys = jax.random.split(jax.random.key(0), work.batch_size)
    self._weights = sampling.Weights(frozen, reader.head(frozen))
    self._rest = keys, np.int32(count)
    compiled = _Compiled(decode, self._weights, self._drawing, *self._rest)
    self._decode = compiled.call
    self.compile_seconds = compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self) -> float:
    self._drawing, tokens = self._decode(
      self._weights, self._drawing, *self._rest
    )
    jax.block_until_ready(tokens)
    return 0.0


def _params(config: schema.ExperimentConfig) -> Any:
  key = jax.random.key(config.seed)
  return jax.jit(functools.partial(network.init_params, config.model))(key)


def _full(memory: Any, mem_len: int) -> Any:
  """Marks the whole memory as valid, as if it had been filled by tokens."""
  return memory._replace(length=jnp.full_like(memory.length, mem_len))


def _segments(
  work: workload.Workload, mesh: jax.sharding.Mesh, count: int
) -> segment.Segment:
  ids = workload.tokens(work, count=count)
  inputs = ids[..., :-1]
  targets = ids[..., 1:]
  segments = segment.Segment(inputs, targets, np.zeros(inputs.shape, bool))
  return jax.device_put(segments, mesh_lib.segments(mesh))
