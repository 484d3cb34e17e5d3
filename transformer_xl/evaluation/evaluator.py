"""Scores a split at one memory length, with fixed parameters.

Every token is predicted exactly once, except the first of the split, which has
no context. Sums are float32 within a call and float64 across calls.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.model import nats
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import ring
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.mixers import mixer as mixer_lib
from transformer_xl.model.mixers import table

SEGMENTS_PER_CALL = 8  # In one compiled call.

State = TypeVar("State")
CallSums = TypeVar("CallSums")


class Score(NamedTuple):
  """The loss of a split."""

  nll: float  # Sum, in nats.
  num_tokens: int
  seconds: float  # Excludes compilation.


def open_stream(
  config: schema.ExperimentConfig, mem_len: int
) -> streams.EvalStream:
  """The segments that an evaluation reads, including its warm-up."""
  warmup = config.eval.warmup_len
  if warmup < 0:  # As many tokens as the memory holds, at least its length.
    warmup = mem_len
    for layer in table.pattern(config.model):
      held = layer.mixer.remembered_tokens(config.model, mem_len)
      warmup = max(warmup, held or 0)
  return streams.EvalStream(
    token_file.open_split(config.data.dataset_dir, config.eval.split),
    num_lanes=config.eval.batch_size,
    segment_len=config.eval.segment_len,
    warmup_len=warmup,
    resets=streams.reset_rule(config.data, config.model),
    context_len=config.eval.context_len,
    targets=config.data.targets,
  )


def make_reader(
  config: schema.ExperimentConfig, mem_len: int
) -> reader_lib.Reader:
  """The reader of whole segments, with the first temperature of evaluation."""
  evaluation = config.eval
  return reader_lib.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=evaluation.read_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    temperature=evaluation.temperature[0],
    whole_steps=True,
  )


def make_network_reader(
  config: schema.ExperimentConfig, mem_len: int
) -> reader_lib.NetworkReader:
  """The network as a reader, with the first temperature of evaluation."""
  evaluation = config.eval
  return reader_lib.NetworkReader(
    config.model,
    mem_len=mem_len,
    segment_len=evaluation.read_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    temperature=evaluation.temperature[0],
  )


def make_network(
  config: schema.ExperimentConfig, *, inspects: bool = False
) -> network.Network:
  """The network with the attention and the first temperature of evaluation."""
  settings = mixer_lib.Settings(
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
    temperature=config.eval.temperature[0],
    inspects=inspects,
  )
  return network.Network(config.model, settings)


def caches_keys(
  config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
) -> bool:
  """Whether memory holds keys and values instead of hidden states.

  `eval.memory` says so; with "auto", a TPU takes keys and values where one
  kernel attends to the ring of each layer.
  """
  if config.eval.memory != "auto":
    return config.eval.memory == "key_value"
  device = mesh.devices.flat[0].device_kind
  if not device.startswith("TPU"):
    return True
  model = config.model
  dtype = jnp.dtype(model.dtype)
  step_len = config.eval.read_len
  query = jax.ShapeDtypeStruct((1, 1, step_len, model.head_dim), dtype)
  for layer in table.pattern(model):
    if layer.mixer.streaming is None:
      continue
    num_slots = ring.num_slots(layer.mem_len(mem_len), step_len)
    keys = jax.ShapeDtypeStruct((1, model.head_dim, num_slots), dtype)
    if not dispatch.fuses_ring(model.attention, device, query, keys):
      return False
  return mesh.shape["tensor"] == 1  # Otherwise XLA attends.


def padded(
  config: schema.ExperimentConfig, mesh: Mesh
) -> schema.ExperimentConfig:
  """Adds the empty lanes that `streams.device_segments` adds."""
  lanes = mesh_lib.padded_lanes(mesh, config.eval.batch_size)
  return load.replaced(config, {"eval.batch_size": lanes})


class Evaluator:
  """Scores `eval.split` at one memory length; compiles once.

  Arrays keep their shardings between calls: lanes are split over `data` and
  `fsdp`, cached keys and values over `tensor` as well. The mesh's devices may
  belong to another machine, as long as nothing but `lower` is called.
  """

  def __init__(
    self, config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
  ):
    self._config = config
    self._mesh = mesh
    self._mem_len = mem_len
    self._is_compiled = False

    # The functions of parameters and state: freeze, start, score.
    reader: reader_lib.TokenReader
    streams = caches_keys(config, mesh, mem_len=mem_len)
    if streams:
      reader = make_reader(config, mem_len)
    else:
      reader = make_network_reader(config, mem_len)
    lanes = mesh_lib.padded_lanes(mesh, config.eval.batch_size)
    start = functools.partial(reader.start, batch_size=lanes)

    # Their compiled forms, with everything placed on the mesh.
    params = network.abstract_params(config.model)
    frozen = jax.eval_shape(reader.freeze, params)
    frozen_at = reader.shardings(mesh, frozen)
    self._frozen = mesh_lib.placed(frozen, frozen_at)
    state = jax.eval_shape(start, self._frozen)
    state_at = mesh_lib.states(mesh, state)
    self._state = mesh_lib.placed(state, state_at)
    if streams:
      self.freeze = _compiled_without_copies(reader.freeze, params, frozen_at)
    else:  # Compiled, the identity would copy every array.
      self.freeze = functools.partial(jax.device_put, device=frozen_at)
    self.start = jax.jit(start, out_shardings=state_at)
    self.score = jax.jit(
      functools.partial(score_segments, reader=reader),
      donate_argnums=1,
      out_shardings=(state_at, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )

  @functools.cached_property
  def stream(self) -> streams.EvalStream:
    """The segments of the split."""
    return open_stream(self._config, self._mem_len)

  def __call__(self, params: shapes.PyTree) -> Score:
    """Scores the whole split."""
    score = self.score_until(params, should_stop=_never)
    assert score is not None
    return score

  def score_until(
    self, params: shapes.PyTree, *, should_stop: Callable[[], bool]
  ) -> Score | None:
    """Scores the whole split; None if `should_stop` holds before its end."""
    sharding = mesh_lib.segments(self._mesh)
    frozen = self.freeze(params)
    num_steps = self.stream.num_steps

    def score(
      state: shapes.PyTree, step: int
    ) -> tuple[shapes.PyTree, nats.Sums]:
      segments = streams.device_segments(
        self.stream, step, SEGMENTS_PER_CALL, sharding
      )
      return self.score(frozen, state, segments)

    if not self._is_compiled:
      # Compiles with a call past the end, in which every weight is 0.
      score(self.start(frozen), num_steps)
      self._is_compiled = True
    scored = score_calls(
      score, self.start(frozen), num_steps, should_stop=should_stop
    )
    if scored is None:
      return None
    parts, seconds = scored
    return Score(
      nll=sum(float(sums.nll) for sums in parts),
      num_tokens=round(sum(float(sums.num_tokens) for sums in parts)),
      seconds=seconds,
    )

  def lower(self, segments: segment_lib.Segment) -> jax.stages.Lowered:
    """Lowers the scoring of segments that have these shapes."""
    return self.score.lower(self._frozen, self._state, segments)


def _never() -> bool:
  return False


def score_calls(
  score: Callable[[State, int], tuple[State, CallSums]],
  state: State,
  num_steps: int,
  *,
  should_stop: Callable[[], bool] = _never,
) -> tuple[list[CallSums], float] | None:
  """Scores a stream with calls of `SEGMENTS_PER_CALL` segments.

  Args:
    score: takes the state and the first step of a call; returns the next state
      and sums of losses, which stay on the devices.
    state: before the first segment.
    num_steps: of the stream.
    should_stop: asked before each call.

  Returns:
    The sums of all calls, on the host, and how many seconds they took; None if
    `should_stop` holds before the end.
  """
  parts = []
  start = time.perf_counter()
  for step in range(0, num_steps, SEGMENTS_PER_CALL):
    if should_stop():
      return None
    state, sums = score(state, step)
    parts.append(sums)
  parts = jax.device_get(parts)
  return parts, time.perf_counter() - start


def score_segments(
  frozen: shapes.PyTree,
  state: shapes.PyTree,
  segments: segment_lib.Segment,
  *,
  reader: reader_lib.TokenReader,
) -> tuple[shapes.PyTree, nats.Sums]:
  """Scores S consecutive segments, [S, B, T]: the next state, and sums."""

  def score(
    state: shapes.PyTree, segment: segment_lib.Segment
  ) -> tuple[shapes.PyTree, nats.Sums]:
    nll, state = reader.nll(
      frozen, state, segment.inputs, segment.targets, segment.resets
    )
    return state, nats.sum_losses(nll, segment.loss_weights())

  state, sums = jax.lax.scan(score, state, segments)
  return state, jax.tree.map(jnp.sum, sums)


def _compiled_without_copies(
  function: Callable[[shapes.PyTree], shapes.PyTree],
  argument: shapes.PyTree,
  shardings: shapes.PyTree,
) -> Callable[[shapes.PyTree], shapes.PyTree]:
  """Compiles a function, except for results that are leaves of its argument.

  `jax.jit` would copy those, and a device may not have the room.

  Args:
    function: pure, of one tree.
    argument: its shapes and types.
    shardings: of the results.
  """
  traced, results = jax.make_jaxpr(function, return_shape=True)(argument)
  inputs = {id(var): index for index, var in enumerate(traced.jaxpr.invars)}
  origins = [inputs.get(id(var)) for var in traced.jaxpr.outvars]

  def only_new(leaves: list[shapes.PyTree]) -> list[shapes.PyTree]:
    return [
      leaf
      for leaf, origin in zip(leaves, origins, strict=True)
      if origin is None
    ]

  def new_results(argument: shapes.PyTree) -> list[shapes.PyTree]:
    return only_new(jax.tree.leaves(function(argument)))

  make = jax.jit(
    new_results,
    out_shardings=only_new(jax.tree.leaves(shardings)),
  )

  def call(argument: shapes.PyTree) -> shapes.PyTree:
    given = jax.tree.leaves(argument)
    new = iter(make(argument))
    leaves = [next(new) if i is None else given[i] for i in origins]
    tree = jax.tree.unflatten(jax.tree.structure(results), leaves)
    return jax.device_put(tree, shardings)

  return call


# The next state, and what is found in one segment, from the parameters of the
# network, its state and the segment.
ReadSegment = Callable[
  [shapes.PyTree, shapes.PyTree, segment_lib.Segment],
  tuple[shapes.PyTree, shapes.PyTree],
]


def per_token(
  config: schema.ExperimentConfig,
  mesh: Mesh,
  params: shapes.PyTree,
  *,
  mem_len: int,
  read_segment: ReadSegment,
) -> shapes.PyTree:
  """Reads `eval.split` once and returns a result for each token.

  `read_segment` takes the parameters, the network's state and a segment, and
  returns the next state and arrays [B, U]. They become [num_tokens - 1]: one
  entry for each token of the split but the first, in order.
  """

  # Parameters are an argument, so that they are no constants of the program.
  def read_segments(
    params: shapes.PyTree, state: network.State, segments: segment_lib.Segment
  ) -> tuple[network.State, shapes.PyTree]:
    return jax.lax.scan(
      functools.partial(read_segment, params), state, segments
    )

  all_targets = load.replaced(config, {"data.targets": "all"})
  stream = open_stream(all_targets, mem_len)
  count = SEGMENTS_PER_CALL
  sharding = mesh_lib.segments(mesh)
  lanes = mesh_lib.padded_lanes(mesh, config.eval.batch_size)
  state = network.empty_state(
    config.model,
    batch_size=lanes,
    mem_len=mem_len,
    step_len=config.eval.read_len,
  )
  read = jax.jit(
    read_segments,
    # Every process reads all of what is found.
    out_shardings=(
      mesh_lib.states(mesh, state),
      mesh_lib.replicated(mesh),
    ),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  parts = []
  weights = []
  for step in range(0, stream.num_steps, count):
    segments = streams.device_segments(stream, step, count, sharding)
    state, found = read(params, state, segments)
    parts.append(jax.tree.map(np.asarray, found))
    weights.append(np.asarray(stream.read(step, count, slice(None)).weights))
  is_scored = _lanes(weights, stream.num_lanes) > 0
  return jax.tree.map(
    lambda *arrays: _lanes(arrays, stream.num_lanes)[is_scored], *parts
  )


def _lanes(arrays: Sequence[np.ndarray], num_lanes: int) -> np.ndarray:
  """Joins calls [S, B, T] to lanes [B, steps, T], consecutive runs of text."""
  return np.concatenate(arrays)[:, :num_lanes].swapaxes(0, 1)
