"""What queries see of memory: one distance for each query, instead of a mask.

Shapes: B lanes, T segment length, M memory length, C compressed slots, c states
in each of them.
"""

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


def next_length(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets,
  count: int | jax.Array,
  *,
  mem_len: int | jax.Array,
) -> jt.Int[shapes.Array, "B"]:
  """Visible length, at most `mem_len`, after `count` tokens of a segment.

  If they are not all of it, it has no resets. Both numbers are scalars.
  """
  document_len = positions_since_reset(resets)[:, -1] + 1
  length = jnp.minimum(length + count, document_len)
  return jnp.minimum(length, mem_len)


def whole_slots(
  length: jt.Int[shapes.Array, "B"], mem_len: int | jax.Array, *, rate: int
) -> jt.Int[shapes.Array, "B"]:
  """Visible compressed slots: those whose c states are all visible.

  `mem_len` is a scalar.
  """
  return jnp.maximum(length - mem_len, 0) // rate


def visible_positions(
  length: jt.Int[shapes.Array, "B"], mem_len: int | jax.Array, *, rate: int
) -> jt.Int[shapes.Array, "B"]:
  """Visible hidden states and compressed slots, for a length in tokens.

  `mem_len` is a scalar.
  """
  slots = whole_slots(length, mem_len, rate=rate)
  return jnp.minimum(length, mem_len) + slots


def positions_since_reset(resets: shapes.Resets) -> shapes.Reach:
  """Distance from each token back to the start of its document.

  Larger than any distance where no document has started in the segment yet.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)[None]
  never = jnp.iinfo(jnp.int32).max // 2
  last = jax.lax.cummax(jnp.where(resets, position, -never), axis=1)
  return position - last


def visible_distance(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets,
  mem_len: int,
  *,
  same_length: bool,
  window: str,
) -> shapes.Reach:
  """The largest distance at which each query may attend.

  A key is visible if and only if 0 <= distance <= reach, so one number per
  query replaces all masks. A token always sees itself. `length` is that of each
  lane's visible memory, and `mem_len` its largest, both in positions: M, or
  C + M.

  With `same_length` all queries see the same number of keys, so that results do
  not depend on how the text is cut into segments. `window` is that number,
  "mem_len" (PyTorch, HuggingFace) or "mem_len_plus_one" (TensorFlow, NVIDIA).
  See `has_window` for a model without memory.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)
  result = length[:, None] + position[None, :]
  result = jnp.minimum(result, positions_since_reset(resets))
  if has_window(mem_len, same_length=same_length):
    distance = mem_len if window == "mem_len_plus_one" else mem_len - 1
    result = jnp.minimum(result, distance)
  return result


def has_window(mem_len: int, *, same_length: bool) -> bool:
  """Whether `same_length` limits what queries see.

  It is off without memory, where a token would see itself alone.
  """
  return same_length and mem_len > 0
