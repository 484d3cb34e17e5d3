"""Losses of a segment and their gradient, for dynamic evaluation.

Dropout is off, so the loss that is differentiated is the one that is scored.

Shapes: S segments, B lanes, T tokens.
"""

from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl


class TextSegment(NamedTuple):
  """A segment and a mask of its real targets."""

  segment: segment_lib.Segment
  is_text: jt.Bool[shapes.Array, "B U"]  # False before and after the text.


class SegmentOutputs(NamedTuple):
  """Losses, last hidden states and next memory of one segment."""

  nll: shapes.Losses
  hidden: jt.Float[shapes.Array, "B U D"]  # Those with targets.
  memory: memory_lib.Memory


def read(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> SegmentOutputs:
  """Runs the model on a segment; `model.nll` that keeps the hidden states."""

  def body(bound) -> SegmentOutputs:
    hidden, after = bound(segment.inputs, memory, segment.resets)
    hidden = hidden[:, -segment.targets.shape[1] :]
    nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())
    return SegmentOutputs(nll, hidden, after)

  result: Any = nn.apply(body, model)({"params": params})
  return result


def loss_gradient(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[shapes.PyTree, SegmentOutputs]:
  """Gradient of the mean loss over the tokens that have weight.

  These are the ones that are scored, so nothing is learned that has not been
  scored: the warm-up of a lane is text that another lane scores later. The
  gradient is zero if there are none.
  """
  weights = segment.loss_weights()

  def loss(params):
    outputs = read(params, memory, segment, model=model)
    total = jnp.sum(weights * outputs.nll)
    return total / jnp.maximum(jnp.sum(weights), 1), outputs

  return jax.grad(loss, has_aux=True)(params)


def mean_squares(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segments: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
  is_per_lane: bool,
) -> shapes.PyTree:
  """Mean squared gradients over S segments, with fixed parameters.

  Args:
    params: of the model.
    memory: before the first segment; per lane, a stack [B, ...] of memories of
      one lane.
    segments: [S, B, T], or [S, B, 1, T] per lane.
    model: the network.
    is_per_lane: square the gradient of each lane instead of the gradient of
      all lanes' mean loss.
  """

  def squares(memory, segment):
    gradients, outputs = loss_gradient(params, memory, segment, model=model)
    return jax.tree.map(jnp.square, gradients), outputs.memory

  def body(carry, segment):
    total, memory = carry
    if is_per_lane:
      new, memory = jax.vmap(squares)(memory, segment)
      new = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), new)
    else:
      new, memory = squares(memory, segment)
    return (jax.tree.map(jnp.add, total, new), memory), None

  zeros = jax.tree.map(jnp.zeros_like, params)
  (total, _), _ = jax.lax.scan(body, (zeros, memory), segments)
  return jax.tree.map(lambda leaf: leaf / len(segments.inputs), total)
