"""This package's side of the speed benchmarks.

A runner compiles when it is constructed. Each call then runs segments with the
same functions as training, evaluation and generation.
"""

import dataclasses
import functools
import time
from typing import Any
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import workload
from transformer_xl import mesh as mesh_lib
from transformer_xl.data import segment
from transformer_xl.evaluation import scorer
from transformer_xl.model import kinds
from transformer_xl.model import kv_cache
from transformer_xl.planning import plan
from transformer_xl.text import sampling
from transformer_xl.training import programs


class Runner(Protocol):
  """Runs `count` segments per call; compiled, with a full memory."""

  compile_seconds: float
  peak_bytes: int

  def __call__(self) -> float:
    """Runs the segments; returns the last mean loss, or 0 without losses."""


def make(work: workload.Workload, *, count: int) -> Runner:
  """Creates the runner of a workload's task."""
  kinds = {"train": _Training, "evaluate": _Evaluation, "generate": _Generation}
  return kinds[work.task](work, count)


class _Compiled:
  """A function compiled ahead of time, with compile time and peak memory."""

  def __init__(self, function: Any, *arguments: Any):
    start = time.perf_counter()
    self.call = function.lower(*arguments).compile()
    self.seconds = time.perf_counter() - start
    self.peak_bytes = plan.held_bytes(self.call)


class _Training:
  """Updates with Adam and gradient clipping."""

  def __init__(self, work, count):
    config = workload.experiment(work)
    self._mesh = mesh_lib.make_mesh(config.mesh)
    with jax.set_mesh(self._mesh):
      state, memory = (
        create() for create in programs.creators(config, self._mesh)
      )
      self._carry = state, _full(memory, work.mem_len)
      self._segments = _segments(work, self._mesh, count)
      update = programs.update(config, self._mesh)
      compiled = _Compiled(update, *self._carry, self._segments)
    self._update, self.compile_seconds = compiled.call, compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self):
    state, memory, metrics = self._update(*self._carry, self._segments)
    self._carry = state, memory
    sums = jax.device_get(metrics.sums)
    return float(sums.nll[-1] / sums.num_tokens[-1])


class _Evaluation:
  """Scores segments, as in `--mode=eval`."""

  def __init__(self, work, count):
    config = workload.experiment(work)
    mesh = mesh_lib.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
      made = scorer.Scorer(config, mesh, mem_len=work.mem_len)
      self._frozen = made.freeze(_params(config))
      self._memory = _full(made.start(self._frozen), work.mem_len)
      self._segments = _segments(work, mesh, count)
      compiled = _Compiled(
        made.score, self._frozen, self._memory, self._segments
      )
    self._score, self.compile_seconds = compiled.call, compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self):
    self._memory, sums = self._score(self._frozen, self._memory, self._segments)
    return float(sums.nll / sums.num_tokens)


class _Generation:
  """Draws the likeliest tokens one by one, as in `--mode=generate`."""

  def __init__(self, work, count):
    config = workload.experiment(work)
    options = dataclasses.replace(
      config.generate, temperature=0.0, tokens_per_call=count
    )
    reader = kv_cache.Reader(
      config.model,
      mem_len=work.mem_len,
      segment_len=options.segment_len,
      clamp_len=0,
      same_length=False,
    )
    frozen = jax.jit(reader.freeze)(_params(config))
    state = _full(reader.start(frozen, batch_size=1), work.mem_len)
    reader, frozen, state = reader.for_tokens(frozen, state)
    drawing = sampling.begin(
      state,
      jnp.zeros((1, 1, work.model_dim), work.dtype),
      np.zeros((sampling.window(options),), np.int32),
      num_samples=work.batch_size,
    )
    call = jax.jit(
      functools.partial(
        sampling.decode, reader=reader, config=options, stop=()
      ),
      donate_argnums=2,
    )
    keys = jax.random.split(jax.random.key(0), work.batch_size)
    self._fixed = frozen, reader.head(frozen)
    self._drawing, self._rest = drawing, (keys, np.int32(count))
    compiled = _Compiled(call, *self._fixed, drawing, *self._rest)
    self._decode, self.compile_seconds = compiled.call, compiled.seconds
    self.peak_bytes = compiled.peak_bytes
    self()

  def __call__(self):
    self._drawing, tokens = self._decode(
      *self._fixed, self._drawing, *self._rest
    )
    jax.block_until_ready(tokens)
    return 0.0


def _params(config):
  key = jax.random.key(config.seed)
  return jax.jit(functools.partial(kinds.init_params, config.model))(key)


def _full(memory: Any, mem_len: int) -> Any:
  """Marks the whole memory as valid, as if it had been filled by tokens."""
  return memory._replace(length=jnp.full_like(memory.length, mem_len))


def _segments(work, mesh, count) -> segment.Segment:
  ids = workload.tokens(work, count=count)
  inputs, targets = ids[..., :-1], ids[..., 1:]
  segments = segment.Segment(inputs, targets, np.zeros(inputs.shape, bool))
  return jax.device_put(segments, mesh_lib.segments(mesh))
