"""Results of an analysis for each token of a split, in order."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import mesh_reader as mesh_reader_lib
from transformer_xl.evaluation import protocol
from transformer_xl.model import reader as reader_lib
from transformer_xl.workdir import trained_model

# The next state, and what is found in one segment, from a reader with its
# prepared parameters, its state and the segment.
ReadSegment = Callable[
  [
    reader_lib.TokenReader,
    shapes.PyTree,
    shapes.PyTree,
    segment_lib.Segment[jax.Array],
  ],
  tuple[shapes.PyTree, shapes.PyTree],
]


def read(
  subject: trained_model.TrainedModel,
  *,
  mem_len: int,
  read_segment: ReadSegment,
) -> shapes.PyTree:
  """Reads `eval.split` once and returns a result for each token.

  `read_segment` takes a reader, its parameters and state, and a segment, and
  returns the next state and arrays [B, U]. They become [num_tokens - 1]: one
  entry for each token of the split but the first, in order.
  """
  scoring = subject.config.scoring
  mesh = subject.mesh

  def read_segments(
    frozen: shapes.PyTree,
    state: shapes.PyTree,
    segments: segment_lib.Segment[jax.Array],
    *,
    reader: reader_lib.TokenReader,
  ) -> tuple[shapes.PyTree, shapes.PyTree]:
    def read_one(
      state: shapes.PyTree, segment: segment_lib.Segment[jax.Array]
    ) -> tuple[shapes.PyTree, shapes.PyTree]:
      return read_segment(reader, frozen, state, segment)

    return jax.lax.scan(read_one, state, segments)

  data = dataclasses.replace(scoring.data, targets="all")
  all_targets = dataclasses.replace(scoring, data=data)
  stream = protocol.open_stream(all_targets, mem_len)
  count = evaluator.SEGMENTS_PER_CALL
  sharding = mesh_lib.segments(mesh)
  parts = []
  weights = []
  with jax.set_mesh(mesh):
    mesh_reader = mesh_reader_lib.MeshReader(scoring, mesh, mem_len=mem_len)
    read_call = mesh_reader.compiled(read_segments)
    frozen = mesh_reader.freeze(subject.params)
    state = mesh_reader.start(frozen)
    for step in range(0, stream.num_steps, count):
      segments = streams.device_segments(stream, step, count, sharding)
      state, found = read_call(frozen, state, segments)
      parts.append(jax.tree.map(np.asarray, found))
      weights.append(np.asarray(stream.read(step, count, slice(None)).weights))
  is_scored = _lanes(weights, stream.num_lanes) > 0
  return jax.tree.map(
    lambda *arrays: _lanes(arrays, stream.num_lanes)[is_scored], *parts
  )


def _lanes(arrays: Sequence[np.ndarray], num_lanes: int) -> np.ndarray:
  """Joins calls [S, B, T] to lanes [B, steps, T], consecutive runs of text."""
  return np.concatenate(arrays)[:, :num_lanes].swapaxes(0, 1)
