"""Scoring: a scan of a one-segment function over memory; sums, not means."""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl


class Sums(NamedTuple):
  """Sums over tokens, in float32."""

  nll: jt.Float[shapes.Array, ""]  # Nats.
  num_tokens: jt.Float[shapes.Array, ""]


def score_segment(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[memory_lib.Memory, shapes.Losses]:
  """Negative log-probabilities of one segment's targets, unweighted."""
  scored: Any = model.apply(
    {"params": params},
    segment.inputs,
    segment.targets,
    memory,
    segment.resets,
    method="nll",
  )
  nll, memory = scored
  return memory, nll


def score_chunk(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segments: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[memory_lib.Memory, Sums]:
  """Sums over S consecutive segments, [S, B, T], of weighted tokens."""
  score = functools.partial(score_segment, model=model)
  return sum_segments(params, memory, segments, score=score)


def sum_segments(
  params: shapes.PyTree,
  memory: shapes.PyTree,
  segments: segment_lib.Segment,
  *,
  score: Callable[..., tuple[shapes.PyTree, shapes.Losses]],
) -> tuple[shapes.PyTree, Sums]:
  """`score_chunk` for any way to remember.

  Args:
    params: whatever `score` takes first.
    memory: what it hands from a segment to the next.
    segments: [S, B, T].
    score: maps params, memory and a segment as `score_segment` does.
  """

  def body(memory, segment):
    memory, nll = score(params, memory, segment)
    return memory, weighted(nll, segment.weights)

  memory, sums = jax.lax.scan(body, memory, segments)
  return memory, jax.tree.map(jnp.sum, sums)


def weighted(nll: shapes.Losses, weights: shapes.Weights) -> Sums:
  """Sums over the tokens of one segment, each times its weight."""
  # Lane by lane, which no mesh splits, and apart, lest XLA make it one sum:
  # so meshes add the same few numbers, and add them in short rows.
  lanes = jax.lax.optimization_barrier(jnp.sum(nll * weights, axis=1))
  return Sums(jnp.sum(lanes), jnp.sum(weights))
