"""Relative attention over a ring of cached keys and values.

Shapes: B lanes, T queries, R slots, H heads, Dh head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class RingPositionKeys(NamedTuple):
  """Of the distances R-1 down to 0."""

  once: jt.Float[shapes.Array, "H Dh R"]
  twice: jt.Float[shapes.Array, "H Dh Q"]  # Around the ring and again.


def ring_attention(
  query: jt.Float[shapes.Array, "B H T Dh"],
  key: jt.Float[shapes.Array, "*BH Dh R"],
  value: jt.Float[shapes.Array, "*BH Dh R"],
  position_key: RingPositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  slot: jt.Int[shapes.Array, ""],
) -> jt.Float[shapes.Array, "B H T Dh"]:
  """`relative_attention` over a ring of R slots, nothing of which moves.

  Slots are the last axis: so a CPU multiplies the row of a single token a
  third faster.

  Args:
    query: of T tokens, whose keys are in the slots from `slot` on.
    key: by slot; the slot after the newest token's has the oldest. Lanes and
      heads are two axes or one.
    value: likewise.
    position_key: projected encodings of the distances.
    content_bias: u.
    position_bias: v.
    reach: largest visible distance for each query; below R - T + 1.
    slot: of the first query; T slots from there on do not pass the end.
  """
  slots, segment_len = key.shape[-1], query.shape[2]
  merged = (*key.shape[:-2], segment_len)
  # Scaled here, where there are fewer numbers than scores.
  scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  content = jnp.einsum(
    "...td,...dr->...tr",
    ((query + content_bias[None, :, None]) * scale).reshape(*merged, -1),
    key,
    preferred_element_type=jnp.float32,
  ).reshape(*query.shape[:3], slots)
  position = _ring_positions(
    (query + position_bias[None, :, None]) * scale, position_key, slots, slot
  )
  newest = slot + jnp.arange(segment_len, dtype=jnp.int32)
  distance = newest[:, None] - jnp.arange(slots, dtype=jnp.int32)[None]
  distance = jnp.where(distance < 0, distance + slots, distance)  # [T, R]
  visible = distance[None] <= reach[:, :, None]  # [B, T, R]
  scores = jnp.where(
    visible[:, None], content + position, jnp.finfo(jnp.float32).min
  )
  probabilities = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
  values = jnp.einsum(
    "...tr,...dr->...td", probabilities.reshape(*merged, slots), value
  )
  return values.reshape(query.shape)


def _ring_positions(query, position_key, slots, slot):
  """Position scores by slot, [B, H, T, R].

  Row i needs the distances (slot + i - s) modulo R for the slots s: a window
  of R + T - 1 columns of the doubled distances, in which each row begins one
  column before the row above. Read with one column less to a row, they align.
  """
  batch, heads, rows, width = query.shape
  start, columns = slots - slot - rows, slots + rows - 1
  # Heads come first, so that a head's products are one for all lanes.
  query = jnp.swapaxes(query, 0, 1).reshape(heads, batch * rows, width)
  if batch * rows < width:  # The scores are smaller than the keys.
    scores = _products(query, position_key.once)
    scores = jnp.concatenate([scores, scores], axis=-1)
    window = jax.lax.dynamic_slice_in_dim(scores, start, columns, axis=2)
  else:
    keys = jax.lax.dynamic_slice_in_dim(
      position_key.twice, start, columns, axis=2
    )
    window = _products(query, keys)
  if rows > 1:
    last = rows - 1 + rows * (columns - 1)
    flat = window.reshape(heads, batch, rows * columns)[..., rows - 1 : last]
    window = flat.reshape(heads, batch, rows, columns - 1)
  window = window.reshape(heads, batch, rows, -1)[..., :slots]
  return jnp.swapaxes(window, 0, 1)


def _products(rows, keys):
  """Of [H, I, Dh] and [H, Dh, J], [H, I, J]."""
  return jnp.einsum(
    "hid,hdj->hij", rows, keys, preferred_element_type=jnp.float32
  )
