"""Memory during evaluation: hidden states, or cached keys and values.

Both give the same numbers for every encoding. A scorer freezes the parameters
once, starts a memory and scores segments with it:

    scorer = scorer.Scorer(config, mesh, mem_len=1600)
    frozen = scorer.freeze(params)
    memory = scorer.start(frozen)
    memory, sums = scorer.score(frozen, memory, segments)
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import pass_through
from transformer_xl.evaluation import sums
from transformer_xl.model import kinds
from transformer_xl.model.kernels import dispatch


class Functions(NamedTuple):
  """Pure functions over one kind of memory."""

  freeze: Callable[[shapes.PyTree], shapes.PyTree] | None  # None: unchanged.
  start: Callable[[shapes.PyTree], shapes.PyTree]  # Of frozen parameters.
  score: Callable[..., tuple[shapes.PyTree, shapes.Losses]]  # One segment.


def hidden_states(config: schema.ExperimentConfig, mem_len: int) -> Functions:
  """Memory of hidden states, whose keys and values are made again."""
  model, lanes = sums.make_model(config), config.eval.batch_size
  empty = functools.partial(
    kinds.empty_memory,
    batch_size=lanes,
    mem_len=mem_len,
    compressed_len=config.eval.compressed_len,
  )
  score = functools.partial(sums.score_segment, model=model)
  return Functions(None, lambda params: empty(config.model), score)


def keys_and_values(config: schema.ExperimentConfig, mem_len: int) -> Functions:
  """Memory of cached keys and values."""
  evaluation, reader = config.eval, _reader(config, mem_len)

  def score(frozen, state, segment):
    inputs, targets, resets, _ = segment
    nll, state = reader.nll(frozen, state, inputs, targets, resets)
    return state, nll

  start = functools.partial(reader.start, batch_size=evaluation.batch_size)
  return Functions(reader.freeze, start, score)


def _reader(config, mem_len) -> kinds.Reader:
  evaluation = config.eval
  return kinds.of(config.model).reader(
    config.model,
    mem_len=mem_len,
    segment_len=evaluation.context_len + evaluation.segment_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    temperature=evaluation.temperature[0],
    compressed_len=evaluation.compressed_len,
  )


def memory_kind(
  config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
) -> str:
  """What memory holds, "hidden" or "key_value"; `eval.memory` if that says.

  With "auto" a TPU takes keys and values where one kernel attends to each ring.
  """
  chosen, device = config.eval.memory, mesh.devices.flat[0].device_kind
  if chosen != "auto":
    return chosen
  if not device.startswith("TPU"):
    return "key_value"
  model, reader = config.model, _reader(config, mem_len)
  dtype, width = jnp.dtype(model.dtype), model.head_dim
  query = jax.ShapeDtypeStruct((1, 1, reader.segment_len, width), dtype)
  fused = [
    dispatch.fuses_ring(
      model.attention,
      device,
      query,
      jax.ShapeDtypeStruct((1, width, slots), dtype),
    )
    for slots in reader.layer_slots
  ]
  is_split = mesh.shape["tensor"] > 1  # Then XLA attends.
  return "key_value" if any(fused) and all(fused) and not is_split else "hidden"


def padded(
  config: schema.ExperimentConfig, mesh: Mesh
) -> schema.ExperimentConfig:
  """Adds the empty lanes that `streams.device_segments` adds."""
  lanes = mesh_lib.padded_lanes(mesh, config.eval.batch_size)
  return load.replaced(config, {"eval.batch_size": lanes})


class Scorer:
  """Compiled functions that score segments of a split on a mesh.

  Arrays keep their shardings between calls: lanes are split over `data` and
  `fsdp`, cached keys and values over `tensor` as well.
  """

  def __init__(
    self, config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
  ):
    config = padded(config, mesh)
    kind = memory_kind(config, mesh, mem_len=mem_len)
    make = keys_and_values if kind == "key_value" else hidden_states
    functions = make(config, mem_len)
    # Only shapes: the mesh's devices may belong to another machine.
    params = frozen = kinds.abstract_params(config.model)
    if functions.freeze:
      frozen = jax.eval_shape(functions.freeze, params)
    frozen_at = mesh_lib.parameters(mesh, frozen)
    self._frozen = mesh_lib.placed(frozen, frozen_at)
    memory = jax.eval_shape(functions.start, self._frozen)
    memory_at = mesh_lib.parameters(mesh, memory)
    self._memory = mesh_lib.placed(memory, memory_at)
    # Compiled, the identity would copy every array.
    self.freeze: Callable[[shapes.PyTree], shapes.PyTree] = functools.partial(
      jax.device_put, device=frozen_at
    )
    if functions.freeze:
      self.freeze = pass_through.compiled(functions.freeze, params, frozen_at)
    self.start = jax.jit(functions.start, out_shardings=memory_at)
    self.score = jax.jit(
      functools.partial(sums.score_chunk, score=functions.score),
      donate_argnums=1,
      out_shardings=(memory_at, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )

  def lower(self, segments: segment_lib.Segment) -> Any:
    """`score` lowered for shapes, to compile for other machines' devices."""
    return self.score.lower(self._frozen, self._memory, segments)
