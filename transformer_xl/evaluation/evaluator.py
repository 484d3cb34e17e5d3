"""Scores a split at one memory length, with fixed parameters.

Every token is predicted exactly once, except the first of the split, which has
no context. Sums are float32 within a call and float64 across calls.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.evaluation import mesh_reader as mesh_reader_lib
from transformer_xl.evaluation import protocol
from transformer_xl.model import nats
from transformer_xl.model import reader as reader_lib

SEGMENTS_PER_CALL = 8  # In one compiled call.

State = TypeVar("State")
CallSums = TypeVar("CallSums")


class Score(NamedTuple):
  """The loss of a split."""

  nll: float  # Sum, in nats.
  num_tokens: int
  seconds: float  # Excludes compilation.


class Evaluator:
  """Scores `eval.split` at one memory length; compiles once.

  The mesh's devices may belong to another machine, as long as nothing but
  `lower` is called.
  """

  def __init__(self, scoring: schema.Scoring, mesh: Mesh, *, mem_len: int):
    self._scoring = scoring
    self._mesh = mesh
    self._mem_len = mem_len
    self._is_compiled = False
    self.mesh_reader = mesh_reader_lib.MeshReader(
      scoring, mesh, mem_len=mem_len
    )
    self.score_segments = self.mesh_reader.compiled(score_segments)

  @functools.cached_property
  def stream(self) -> streams.EvalStream:
    """The segments of the split."""
    return protocol.open_stream(self._scoring, self._mem_len)

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
    frozen = self.mesh_reader.freeze(params)
    num_steps = self.stream.num_steps

    def score_call(
      state: shapes.PyTree, step: int
    ) -> tuple[shapes.PyTree, nats.Sums]:
      segments = streams.device_segments(
        self.stream, step, SEGMENTS_PER_CALL, sharding
      )
      return self.score_segments(frozen, state, segments)

    if not self._is_compiled:
      # Compiles with a call past the end, in which every weight is 0. Devices
      # still compute it, and freeze parameters, when a call returns.
      jax.block_until_ready(
        score_call(self.mesh_reader.start(frozen), num_steps)
      )
      self._is_compiled = True
    scored = score_calls(
      score_call,
      self.mesh_reader.start(frozen),
      num_steps,
      should_stop=should_stop,
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
    return self.score_segments.lower(
      self.mesh_reader.frozen, self.mesh_reader.state, segments
    )


def _never() -> bool:
  return False


def score_calls(
  score_call: Callable[[State, int], tuple[State, CallSums]],
  state: State,
  num_steps: int,
  *,
  should_stop: Callable[[], bool] = _never,
) -> tuple[list[CallSums], float] | None:
  """Scores a stream with calls of `SEGMENTS_PER_CALL` segments.

  Args:
    score_call: takes the state and the first step of a call; returns the next
      state and sums of losses, which stay on the devices.
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
    state, sums = score_call(state, step)
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

  def score_segment(
    state: shapes.PyTree, segment: segment_lib.Segment
  ) -> tuple[shapes.PyTree, nats.Sums]:
    nll, state = reader.nll(
      frozen, state, segment.inputs, segment.targets, segment.resets
    )
    return state, nats.sum_losses(nll, segment.loss_weights())

  state, sums = jax.lax.scan(score_segment, state, segments)
  return state, jax.tree.map(jnp.sum, sums)
