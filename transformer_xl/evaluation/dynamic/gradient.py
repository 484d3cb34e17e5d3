"""A segment to learn from: its losses, and their gradient.

Dropout is off: what is scored is what is learned from.

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


class Lesson(NamedTuple):
  """A segment, and which of its targets may be learned from."""

  segment: segment_lib.Segment
  is_text: jt.Bool[shapes.Array, "B T"]  # Not before the text or past its end.


class Reading(NamedTuple):
  """What a model makes of a segment."""

  nll: shapes.Losses
  hidden: shapes.Hidden  # Of the last layer.
  memory: memory_lib.Memory


def read(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> Reading:
  """Reads a segment; `model.nll` that keeps the hidden states."""

  def body(bound) -> Reading:
    hidden, after = bound(segment.inputs, memory, segment.resets)
    nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())
    return Reading(nll, hidden, after)

  result: Any = nn.apply(body, model)({"params": params})
  return result


def gradient(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  lesson: Lesson,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[shapes.PyTree, Reading]:
  """Of the mean loss over what is text, counted or not; 0 without any."""

  def loss(params):
    reading = read(params, memory, lesson.segment, model=model)
    total = jnp.sum(jnp.where(lesson.is_text, reading.nll, 0.0))
    return total / jnp.maximum(jnp.sum(lesson.is_text), 1), reading

  return jax.grad(loss, has_aux=True)(params)


def mean_squares(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  lessons: Lesson,
  *,
  model: transformer_xl.TransformerXL,
  is_apart: bool,
) -> shapes.PyTree:
  """Of the gradients of S lessons, of each lane's own or of all lanes'.

  Args:
    params: which stay.
    memory: before the first lesson; [B, ...] of one lane each if apart.
    lessons: [S, B, T], or [S, B, 1, T] if apart.
    model: whose parameters they are.
    is_apart: each lane is a lesson of its own.
  """

  def squares(memory, lesson):
    slopes, reading = gradient(params, memory, lesson, model=model)
    return jax.tree.map(jnp.square, slopes), reading.memory

  def body(carry, lesson):
    total, memory = carry
    if is_apart:
      new, memory = jax.vmap(squares)(memory, lesson)
      new = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), new)
    else:
      new, memory = squares(memory, lesson)
    return (jax.tree.map(jnp.add, total, new), memory), None

  zeros = jax.tree.map(jnp.zeros_like, params)
  (total, _), _ = jax.lax.scan(body, (zeros, memory), lessons)
  return jax.tree.map(lambda leaf: leaf / len(lessons.is_text), total)
