"""Scoring: a scan of a one-segment function over memory.

Results are sums; means are made at the end.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import kinds
from transformer_xl.model import network


class Sums(NamedTuple):
  """Sums over tokens, in float32."""

  nll: jt.Float[shapes.Array, ""]  # Nats.
  num_tokens: jt.Float[shapes.Array, ""]


def make_model(config: schema.ExperimentConfig) -> network.Network:
  """The model with the attention and the first temperature of evaluation."""
  evaluation = config.eval
  return kinds.of(config.model).network(
    config.model,
    evaluation.clamp_len,
    evaluation.same_length,
    evaluation.temperature[0],
  )


def score_segment(
  params: shapes.PyTree,
  memory: kinds.Memory,
  segment: segment_lib.Segment,
  *,
  model: network.Network,
) -> tuple[kinds.Memory, shapes.Losses]:
  """Negative log-probabilities of one segment's targets, unweighted."""
  inputs, targets, resets, _ = segment
  bound = model.bind({"params": params})
  nll, memory = bound.nll(inputs, targets, memory, resets)
  return memory, nll


def score_chunk(
  params: shapes.PyTree,
  memory: shapes.PyTree,
  segments: segment_lib.Segment,
  *,
  score: Callable[..., tuple[shapes.PyTree, shapes.Losses]],
) -> tuple[shapes.PyTree, Sums]:
  """Scores S consecutive segments, [S, B, T]: the next memory, and sums.

  `score` has the arguments and results of `score_segment`, for any memory.
  """

  def body(memory, segment):
    memory, nll = score(params, memory, segment)
    return memory, weighted(nll, segment.loss_weights())

  memory, sums = jax.lax.scan(body, memory, segments)
  return memory, jax.tree.map(jnp.sum, sums)


def weighted(nll: shapes.Losses, weights: shapes.Weights) -> Sums:
  """Weighted sums over the tokens of one segment."""
  # First within each lane, which no mesh splits, then over lanes. The barrier
  # keeps XLA from merging the two sums, so every mesh adds the same few numbers
  # in the same order, in short rows.
  lanes = jax.lax.optimization_barrier(jnp.sum(nll * weights, axis=1))
  return Sums(jnp.sum(lanes), jnp.sum(weights))
