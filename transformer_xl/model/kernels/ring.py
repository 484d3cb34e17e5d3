"""Attention over a ring of cached keys and values.

Shapes: B lanes, T queries, R slots, H heads, Dh head width. Lanes and heads of
the ring are one axis, B * H.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model.kernels import dense


class RingPositionKeys(NamedTuple):
  """Keys of the distances R-1 down to 0."""

  once: jt.Float[shapes.Array, "H Dh R"]
  twice: jt.Float[shapes.Array, "H Dh Q"]  # The same, two times in a row.

  def partition_specs(self) -> "RingPositionKeys":
    """How a mesh splits them: by heads."""
    heads: Any = P("tensor")
    return RingPositionKeys(heads, heads)


def position_keys(distance_key: shapes.PositionKeys) -> RingPositionKeys:
  """Arranges keys of the distances R-1 to 0, [R, H, Dh], for a ring."""
  return around(jnp.transpose(distance_key, (1, 2, 0)))


def around(once: jt.Float[shapes.Array, "H Dh R"]) -> RingPositionKeys:
  """The keys, and the keys repeated."""
  return RingPositionKeys(once, jnp.concatenate([once, once], axis=2))


def ring_attention(
  query: shapes.RingQueries,
  key: shapes.Ring,
  value: shapes.Ring,
  position_key: RingPositionKeys | None,
  *,
  biases: shapes.BiasPair | None,
  slopes: shapes.Slopes | None = None,
  reach: shapes.Reach,
  slot: jt.Int[shapes.Array, ""],
) -> shapes.RingQueries:
  """Attention over a ring of R slots, in which nothing moves.

  The T queries' own keys and values are in the slots from `slot` on, which do
  not pass the end; the slot after them has the oldest. Each largest visible
  distance in `reach` is below R - T + 1. Without `position_key`, scores have no
  position term; with `slopes`, scaled scores fall in proportion to the
  distance. With slots as the last axis a CPU multiplies the row of a single
  token a third faster.
  """
  slots, segment_len = key.shape[-1], query.shape[2]
  merged = (key.shape[0], segment_len)
  # Queries are scaled instead of scores, of which there are more.
  scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)

  def scaled(bias):
    return (query if bias is None else query + bias[None, :, None]) * scale

  content_bias, position_bias = biases or (None, None)
  scores = _products(scaled(content_bias).reshape(*merged, -1), key)
  scores = scores.reshape(*query.shape[:3], slots)
  if position_key is not None:
    position_query = scaled(position_bias)
    scores += _ring_positions(position_query, position_key, slots, slot)
  newest = slot + jnp.arange(segment_len, dtype=jnp.int32)
  distance = newest[:, None] - jnp.arange(slots, dtype=jnp.int32)[None]
  distance = jnp.where(distance < 0, distance + slots, distance)  # [T, R]
  if slopes is not None:
    scores -= attention.linear_penalties(slopes, distance)[None]
  visible = distance[None] <= reach[:, :, None]  # [B, T, R]
  scores = jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
  rows = dense.on_matrix_units(probabilities.reshape(*merged, slots))
  values = jnp.einsum("btr,bdr->btd", rows, value)[:, :segment_len]
  return values.reshape(query.shape)


def _ring_positions(query, position_key, slots, slot):
  """Position scores by slot, [B, H, T, R].

  Row i needs the distances (slot + i - s) modulo R for the slots s: a window
  of R + T - 1 columns of the doubled distances, in which each row begins one
  column before the row above. Reading the window as rows that are one column
  shorter aligns them.
  """
  batch, heads, rows, width = query.shape
  start, columns = slots - slot - rows, slots + rows - 1

  def in_window(array):
    return jax.lax.dynamic_slice_in_dim(array, start, columns, axis=2)

  # With heads first, one product serves all lanes of a head.
  query = jnp.swapaxes(query, 0, 1).reshape(heads, batch * rows, width)
  if batch * rows < width:  # The scores are smaller than the keys.
    scores = _products(query, position_key.once)
    window = in_window(jnp.concatenate([scores, scores], axis=-1))
  else:
    window = _products(query, in_window(position_key.twice))
  if rows > 1:
    last = rows - 1 + rows * (columns - 1)
    flat = window.reshape(heads, batch, rows * columns)[..., rows - 1 : last]
    window = flat.reshape(heads, batch, rows, columns - 1)
  window = window.reshape(heads, batch, rows, -1)[..., :slots]
  return jnp.swapaxes(window, 0, 1)


def _products(rows, keys):
  """Multiplies [H, I, Dh] by [H, Dh, J], added up in float32."""
  result = jnp.einsum(
    "hid,hdj->hij",
    dense.on_matrix_units(rows),
    keys,
    preferred_element_type=jnp.float32,
  )
  return result[:, : rows.shape[1]]
