"""A reader on a mesh: what evaluation and analyses read a split with."""

import functools
from collections.abc import Callable
from typing import Protocol

import jax
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import protocol
from transformer_xl.evaluation import without_copies
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib


class ReadSegments(Protocol):
  """Reads consecutive segments."""

  def __call__(
    self,
    frozen: shapes.PyTree,
    state: shapes.PyTree,
    segments: segment_lib.Segment[jax.Array],
    *,
    reader: reader_lib.TokenReader,
  ) -> tuple[shapes.PyTree, shapes.PyTree]:
    """Returns the next state, and what all processes get."""


class MeshReader:
  """The functions of a reader, compiled for a mesh.

  Arrays keep their shardings between calls: lanes are split over `data` and
  `fsdp`, cached keys and values over `tensor` as well. The mesh's devices may
  belong to another machine, as long as nothing is called.

  Attributes:
    frozen: shapes and shardings of what is computed of the parameters once.
    state: those of the state.
    freeze: of parameters.
    start: the state before the first token, of frozen parameters.
  """

  def __init__(self, scoring: schema.Scoring, mesh: Mesh, *, mem_len: int):
    """Chooses the reader that suits the mesh, or that `eval.memory` names."""
    model = scoring.model
    evaluation = scoring.eval
    caches_keys = protocol.caches_keys(model, evaluation, mesh, mem_len=mem_len)
    reader: reader_lib.TokenReader
    if caches_keys:
      reader = protocol.make_reader(model, evaluation, mem_len)
    else:
      reader = protocol.make_network_reader(model, evaluation, mem_len)
    self._reader = reader
    self._mesh = mesh
    lanes = mesh_lib.padded_lanes(mesh, evaluation.batch_size)
    start = functools.partial(reader.start, batch_size=lanes)

    params = network.abstract_params(model)
    frozen = jax.eval_shape(reader.freeze, params)
    frozen_at = reader.shardings(mesh, frozen)
    self.frozen = mesh_lib.with_shardings(frozen, frozen_at)
    state = jax.eval_shape(start, self.frozen)
    self._state_at = mesh_lib.states(mesh, state)
    self.state = mesh_lib.with_shardings(state, self._state_at)
    self.freeze: Callable[[shapes.PyTree], shapes.PyTree]
    if caches_keys:
      self.freeze = without_copies.compiled(reader.freeze, params, frozen_at)
    else:  # Compiled, the identity would copy every array.
      self.freeze = functools.partial(jax.device_put, device=frozen_at)
    self.start = jax.jit(start, out_shardings=self._state_at)

  def compiled(self, read_segments: ReadSegments) -> jax.stages.Wrapped:
    """A function that reads segments [S, B, T]; it takes over the state."""
    return jax.jit(
      functools.partial(read_segments, reader=self._reader),
      donate_argnums=1,
      out_shardings=(self._state_at, mesh_lib.replicated(self._mesh)),
      compiler_options=mesh_lib.compiler_options(self._mesh),
    )
