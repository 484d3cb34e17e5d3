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
  is_text: jt.Bool[shapes.Array, "B T"]  # False before and after the text.


class SegmentOutputs(NamedTuple):
  """Losses, last hidden states and next memory of one segment."""

  nll: shapes.Losses
  hidden: shapes.Hidden
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
    nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())
    return SegmentOutputs(nll, hidden, after)

  result: Any = nn.apply(body, model)({"params": params})
  return result


def loss_gradient(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  text: TextSegment,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[shapes.PyTree, SegmentOutputs]:
  """Gradient of the mean loss over real tokens, scored or not.

  It is zero if there are none.
  """

  def loss(params):
    outputs = read(params, memory, text.segment, model=model)
    total = jnp.sum(jnp.where(text.is_text, outputs.nll, 0.0))
    return total / jnp.maximum(jnp.sum(text.is_text), 1), outputs

  return jax.grad(loss, has_aux=True)(params)


def mean_squares(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  texts: TextSegment,
  *,
  model: transformer_xl.TransformerXL,
  is_per_lane: bool,
) -> shapes.PyTree:
  """Mean squared gradients over S segments, with fixed parameters.

  Args:
    params: of the model.
    memory: before the first segment; per lane, a stack [B, ...] of memories of
      one lane.
    texts: [S, B, T], or [S, B, 1, T] per lane.
    model: the network.
    is_per_lane: square the gradient of each lane instead of the gradient of
      all lanes' mean loss.
  """

  def squares(memory, text):
    gradients, outputs = loss_gradient(params, memory, text, model=model)
    return jax.tree.map(jnp.square, gradients), outputs.memory

  def body(carry, text):
    total, memory = carry
    if is_per_lane:
      new, memory = jax.vmap(squares)(memory, text)
      new = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), new)
    else:
      new, memory = squares(memory, text)
    return (jax.tree.map(jnp.add, total, new), memory), None

  zeros = jax.tree.map(jnp.zeros_like, params)
  (total, _), _ = jax.lax.scan(body, (zeros, memory), texts)
  return jax.tree.map(lambda leaf: leaf / len(texts.is_text), total)
