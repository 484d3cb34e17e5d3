"""Segment memory: the hidden states each layer may still attend to.

Memory is a value. A segment takes one and returns the next; nothing else
remembers anything. Hidden states are right-aligned, newest last, and `length`
says how many of them a lane may see, so forgetting is setting a number.

Shapes: N layers, B lanes, M memory length, T segment length, D model width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class Memory(NamedTuple):
  """What one segment hands to the next."""

  hiddens: jt.Float[shapes.Array, "N B M D"]  # Inputs of each layer.
  length: jt.Int[shapes.Array, "B"]  # Visible positions, from the right.


def empty(
  num_layers: int,
  batch_size: int,
  mem_len: int,
  model_dim: int,
  *,
  dtype: jnp.dtype,
  start: str,
) -> Memory:
  """Memory before the first token.

  Args:
    num_layers: N.
    batch_size: B.
    mem_len: M; zero gives a model without recurrence.
    model_dim: D.
    dtype: of the hidden states; the model's compute type.
    start: "masked" hides the empty positions, as the original PyTorch code
      does by starting with none. "zeros" lets queries attend to M zero
      vectors, as TensorFlow and HuggingFace do (facts 2.5).
  """
  hiddens = jnp.zeros((num_layers, batch_size, mem_len, model_dim), dtype)
  length = mem_len if start == "zeros" else 0
  return Memory(hiddens, jnp.full((batch_size,), length, jnp.int32))


def reset(
  memory: Memory, rows: jt.Bool[shapes.Array, "B"], *, start: str
) -> Memory:
  """Forgets the given lanes, as if their next token were the first."""
  if start == "zeros":
    forgotten = rows[None, :, None, None]
    return memory._replace(hiddens=jnp.where(forgotten, 0, memory.hiddens))
  # The stale states stay where they are; no query can see past `length`.
  return memory._replace(length=jnp.where(rows, 0, memory.length))


def append(
  memory: Memory,
  hiddens: jt.Float[shapes.Array, "N B T D"],
  resets: shapes.Resets,
) -> Memory:
  """The last M of the old and the new states; gradients stop here.

  Args:
    memory: what the segment started from, after `reset` of whole lanes.
    hiddens: the inputs of each layer during the segment.
    resets: True where a new document starts inside the segment; what lies
      before the last of them is forgotten.
  """
  mem_len, segment_len = memory.hiddens.shape[2], hiddens.shape[2]
  if mem_len == 0:
    return memory
  new = jax.lax.stop_gradient(hiddens).astype(memory.hiddens.dtype)
  both = jnp.concatenate([memory.hiddens, new], axis=2)  # [N, B, M+T, D]
  length = next_length(memory.length, resets, mem_len=mem_len)
  return Memory(both[:, :, segment_len:], length)


def next_length(
  length: jt.Int[shapes.Array, "B"], resets: shapes.Resets, *, mem_len: int
) -> jt.Int[shapes.Array, "B"]:
  """How much of the memory is visible after a segment."""
  document_len = positions_since_reset(resets)[:, -1] + 1
  length = jnp.minimum(length + resets.shape[1], document_len)
  return jnp.minimum(length, mem_len)


def positions_since_reset(resets: shapes.Resets) -> shapes.Reach:
  """How many positions back the token's document starts, in the segment.

  Where no document has started yet the number is larger than any distance.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)[None]
  never = jnp.iinfo(jnp.int32).max // 2
  last = jax.lax.cummax(jnp.where(resets, position, -never), axis=1)
  return position - last


def reach(
  memory: Memory,
  resets: shapes.Resets,
  *,
  same_length: bool,
  window: str,
) -> shapes.Reach:
  """`visible_distance` for a memory of hidden states."""
  return visible_distance(
    memory.length,
    resets,
    mem_len=memory.hiddens.shape[2],
    same_length=same_length,
    window=window,
  )


def visible_distance(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets,
  *,
  mem_len: int,
  same_length: bool,
  window: str,
) -> shapes.Reach:
  """The largest distance at which each query may attend, [B, T].

  A key is visible if and only if 0 <= distance <= reach: one number per query
  holds every mask there is. Itself is always visible.

  Args:
    length: of each lane's visible memory.
    resets: True where a new document starts inside the segment.
    mem_len: M.
    same_length: every query sees equally many keys (facts 2.4), so that the
      result does not depend on how the text is cut into segments.
    window: how many, "mem_len" (PyTorch, HuggingFace) or "mem_len_plus_one"
      (TensorFlow, NVIDIA); only used with `same_length`.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)
  result = length[:, None] + position[None, :]
  result = jnp.minimum(result, positions_since_reset(resets))
  if same_length:
    distance = mem_len if window == "mem_len_plus_one" else mem_len - 1
    result = jnp.minimum(result, max(distance, 0))
  return result
