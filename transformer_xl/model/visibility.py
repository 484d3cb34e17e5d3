"""How far queries see: one distance for each query, instead of a mask.

A key is visible if and only if its distance is at most the query's reach, so
one number per query replaces all masks.

Shapes: B lanes, T segment length, M memory length.
"""

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes

# The most tokens of a document that are counted, so that no sum of two counts
# overflows an int32.
LONG = 1 << 29


def since_reset(resets: shapes.Resets) -> shapes.Reach:
  """Distance from each token back to the start of its document.

  The distance is larger than any other where no document has started in the
  segment yet.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)[None]
  never = jnp.iinfo(jnp.int32).max // 2
  last = jax.lax.cummax(jnp.where(resets, position, -never), axis=1)
  return position - last


def next_length(
  length: jt.Int[shapes.Array, "B"],
  since_reset: shapes.Reach,
  count: int | jax.Array,
) -> jt.Int[shapes.Array, "B"]:
  """Tokens of its document that each lane has read, after a segment.

  Only the first `count` tokens of the segment are read, a scalar; the others
  are padding, and then there are no resets.
  """
  document_len = since_reset[:, -1] + 1
  return jnp.minimum(jnp.minimum(length + count, document_len), LONG)


def visible_distance(
  num_visible: jt.Int[shapes.Array, "B"],
  since_reset: shapes.Reach,
  *,
  mem_len: int,
  same_length: bool,
  window: str,
) -> shapes.Reach:
  """The largest distance at which each query may attend.

  A token always sees itself. Of the `mem_len` positions of its memory, each
  lane sees the newest `num_visible`.

  With `same_length` all queries see the same number of keys, so that results do
  not depend on how the text is cut into segments. `window` is that number,
  "mem_len" (PyTorch, HuggingFace) or "mem_len_plus_one" (TensorFlow, NVIDIA).
  See `has_window` for a model without memory.
  """
  position = jnp.arange(since_reset.shape[1], dtype=jnp.int32)[None]
  result = jnp.minimum(num_visible[:, None] + position, since_reset)
  if has_window(mem_len, same_length=same_length):
    distance = mem_len if window == "mem_len_plus_one" else mem_len - 1
    result = jnp.minimum(result, distance)
  return result


def has_window(mem_len: int, *, same_length: bool) -> bool:
  """Whether `same_length` limits what queries see.

  Without memory it does not, since a token would see itself alone.
  """
  return same_length and mem_len > 0
