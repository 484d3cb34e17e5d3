"""Relative attention (Dai et al. 2019, section 3.3) on plain arrays.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes

# Odd, so that distinct indices stay distinct; 2^32 divided by the golden ratio.
_STRIDE = 0x9E3779B9 - (1 << 32)


class Dropout(NamedTuple):
  """Of attention's weights.

  Which of them are dropped is a function of where they are, so every
  implementation drops the same ones on any mesh, and none keeps a mask.
  """

  rate: float
  seeds: jt.Int[shapes.Array, "B H"]  # Random bits.


def sinusoids(
  distances: jt.Float[shapes.Array, "R"], model_dim: int
) -> jt.Float[shapes.Array, "R D"]:
  """Encodings of distances: all sines, then all cosines (facts 2.2)."""
  channels = jnp.arange(0, model_dim, 2, dtype=jnp.float32)
  frequencies = 10000.0 ** (-channels / model_dim)
  angles = distances[:, None] * frequencies[None, :]
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def position_encodings(
  context_len: int, model_dim: int, *, clamp_len: int
) -> shapes.Positions:
  """Encodings of the distances K-1 down to 0, one row each.

  With a positive `clamp_len` all larger distances share its encoding.
  """
  distances = jnp.arange(context_len - 1, -1, -1, dtype=jnp.float32)
  if clamp_len > 0:
    distances = jnp.minimum(distances, clamp_len)
  return sinusoids(distances, model_dim)


def clipped_rows(
  table: jt.Float[shapes.Array, "R E"], context_len: int
) -> jt.Float[shapes.Array, "K E"]:
  """Learned rows of the distances K-1 to 0; the last is for all beyond."""
  distance = jnp.arange(context_len - 1, -1, -1, dtype=jnp.int32)
  return table[jnp.minimum(distance, table.shape[0] - 1)]


def rel_shift(
  scores: jt.Float[shapes.Array, "B H T K"],
) -> jt.Float[shapes.Array, "B H T K"]:
  """Turns columns of descending distance into columns of keys.

  Row i moves left by T-1-i, at linear cost, by reading the array with one more
  column (paper, appendix B). Entries for keys after the query hold values of
  other rows: the causal mask must follow.
  """
  batch, heads, rows, columns = scores.shape
  padded = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
  folded = padded.reshape(batch, heads, columns + 1, rows)
  return folded[:, :, 1:].reshape(scores.shape)


def visible_keys(
  reach: shapes.Reach, context_len: int
) -> jt.Bool[shapes.Array, "B T K"]:
  """Whether each query may attend to each key; see `memory.reach`."""
  segment_len = reach.shape[1]
  query = jnp.arange(context_len - segment_len, context_len)
  distance = query[:, None] - jnp.arange(context_len)[None, :]  # [T, K]
  return (distance >= 0)[None] & (distance[None] <= reach[:, :, None])


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  dropout: Dropout | None,
  first_query: int = 0,
) -> shapes.Queries:
  """Attention with content and position terms, softmax in float32.

  Args:
    query: of the segment's T tokens.
    key: of memory and segment, oldest first.
    value: likewise.
    position_key: projected encodings of the distances K-1 down to 0.
    content_bias: u, added to the query in the content term.
    position_bias: v, added to the query in the position term.
    reach: largest visible distance for each query.
    dropout: of the probabilities, which are not re-normalised.
    first_query: where in its segment the first query is, for dropout.

  Returns:
    The weighted values, [B, T, H, Dh], in the type of `query`.
  """
  content = jnp.einsum(
    "bthd,bkhd->bhtk",
    query + content_bias[None, None],
    key,
    preferred_element_type=jnp.float32,
  )
  position = jnp.einsum(
    "bthd,khd->bhtk",
    query + position_bias[None, None],
    position_key,
    preferred_element_type=jnp.float32,
  )
  # The published code scales the sum, so u and v are scaled too.
  scores = (content + rel_shift(position)) * query.shape[-1] ** -0.5
  weights = visible_softmax(scores, reach).astype(query.dtype)
  weights = drop(weights, dropout, first_query=first_query)
  return jnp.einsum("bhtk,bkhd->bthd", weights, value)


def absolute_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  *,
  reach: shapes.Reach,
  dropout: Dropout | None,
) -> shapes.Queries:
  """`relative_attention` with the product of query and key alone."""
  scores = jnp.einsum(
    "bthd,bkhd->bhtk", query, key, preferred_element_type=jnp.float32
  )
  scores = scores * query.shape[-1] ** -0.5
  weights = visible_softmax(scores, reach).astype(query.dtype)
  weights = drop(weights, dropout, first_query=0)
  return jnp.einsum("bhtk,bkhd->bthd", weights, value)


def visible_softmax(
  scores: jt.Float[shapes.Array, "B H T K"], reach: shapes.Reach
) -> jt.Float[shapes.Array, "B H T K"]:
  """How each query divides its attention among the keys that it may see."""
  visible = visible_keys(reach, scores.shape[-1])[:, None]  # [B, 1, T, K]
  scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1)


def drop(
  weights: jt.Float[shapes.Array, "B H T K"],
  dropout: Dropout | None,
  *,
  first_query: int,
) -> jt.Float[shapes.Array, "B H T K"]:
  """Zeros some weights and raises the others to make up for it."""
  if dropout is None:
    return weights
  queries, keys = weights.shape[2:]
  query = jnp.arange(queries, dtype=jnp.int32) + first_query
  keeps = kept(
    dropout.seeds[:, :, None, None],
    query[None, None, :, None],
    jnp.arange(keys, dtype=jnp.int32)[None, None, None],
    rate=dropout.rate,
  )
  return jnp.where(keeps, weights / (1 - dropout.rate), 0)


def kept(
  seed: jax.Array, query: jax.Array, key: jax.Array, *, rate: float
) -> jax.Array:
  """Whether dropout keeps the weight between a query and a key.

  A hash of three numbers, cheap enough for inside a kernel: each query draws a
  start of its own, from which keys are numbered.

  Args:
    seed: random bits of lane and head, int32 as all three.
    query: index in the segment.
    key: index in memory and segment; all three broadcast to the shape of
      the result.
    rate: of what is dropped.
  """
  start = _mixed(seed + query * _STRIDE)
  bits = _mixed(start ^ (key * _STRIDE))
  return bits >= int(rate * 2**32) - 2**31


def _mixed(bits: jax.Array) -> jax.Array:
  """Spreads every bit over the higher ones: Wellons' `lowbias32`, shortened.

  Its last step would only change the lower half.
  """
  bits = bits ^ jax.lax.shift_right_logical(bits, 16)
  bits = bits * 0x7FEB352D
  bits = bits ^ jax.lax.shift_right_logical(bits, 15)
  return bits * (0x846CA68B - (1 << 32))


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
