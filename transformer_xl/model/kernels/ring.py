"""Attention over a ring of cached keys and values, in XLA.

Nothing moves in a ring of R slots: the T queries' own keys and values are in
the slots from `slot` on, which do not pass the end, and the slot after them has
the oldest.

Shapes: B lanes, T queries, R slots, H heads, Dh head width. Lanes and heads of
the ring are one axis, B * H. With slots as the last axis a CPU multiplies the
row of a single token a third faster.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import scores as scores_lib
from transformer_xl.model.kernels import dense


class RingPositionKeys(NamedTuple):
  """Keys of the distances R-1 down to 0."""

  once: jt.Float[shapes.Array, "H Dh R"]
  twice: jt.Float[shapes.Array, "H Dh Q"]  # The same, two times in a row.

  def partition_specs(self) -> "RingPositionKeys":
    """The keys' PartitionSpecs, which split them by heads."""
    heads = mesh_lib.spec("tensor")
    return RingPositionKeys(heads, heads)


class Inputs(NamedTuple):
  """The arguments of attention over a ring.

  Attributes:
    query: of the segment.
    key: by slot.
    value: by slot.
    reach: the largest distance that each query may see, below R - T + 1.
    slot: of the first query's own key.
    position_key: keys of distances; without them, scores have no such term.
    distance: the other terms that depend on the distance.
  """

  query: shapes.RingQueries
  key: shapes.Ring
  value: shapes.Ring
  reach: shapes.Reach
  slot: jt.Int[shapes.Array, ""]
  position_key: RingPositionKeys | None = None
  distance: scores_lib.DistanceTerms = scores_lib.DistanceTerms()


def position_keys(distance_key: shapes.PositionKeys) -> RingPositionKeys:
  """Arranges keys of the distances R-1 to 0, [R, H, Dh], for a ring."""
  return around(jnp.transpose(distance_key, (1, 2, 0)))


def around(once: jt.Float[shapes.Array, "H Dh R"]) -> RingPositionKeys:
  """The keys of a ring, from keys [H, Dh, R] of the distances R-1 to 0."""
  return RingPositionKeys(once, jnp.concatenate([once, once], axis=2))


def ring_attention(inputs: Inputs) -> shapes.RingQueries:
  """Attention of the segment to the whole ring."""
  query = inputs.query
  key = inputs.key
  value = inputs.value
  lanes, heads, segment_len, width = query.shape
  slots = key.shape[-1]
  merged = (lanes * heads, segment_len)
  # Queries are scaled instead of scores, of which there are more.
  scale = jnp.asarray(width**-0.5, query.dtype)
  content_query = query
  position_query = query
  terms = inputs.distance
  if terms.biases is not None:
    content_bias, position_bias = terms.biases
    content_query = query + content_bias[None, :, None]
    position_query = query + position_bias[None, :, None]

  content_query = (content_query * scale).reshape(*merged, width)
  scores = _products(content_query, key)
  scores = scores.reshape(lanes, heads, segment_len, slots)
  if inputs.position_key is not None:
    scores += _position_scores(
      position_query * scale, inputs.position_key, inputs.slot
    )

  newest = inputs.slot + jnp.arange(segment_len, dtype=jnp.int32)
  distance = newest[:, None] - jnp.arange(slots, dtype=jnp.int32)[None]
  distance = jnp.where(distance < 0, distance + slots, distance)  # [T, R]
  if terms.slopes is not None:
    scores -= attention.linear_penalties(terms.slopes, distance)[None]
  if terms.added is not None:
    scores += _added_scores(terms.added, inputs.slot, segment_len)[None]
  visible = distance[None] <= inputs.reach[:, :, None]  # [B, T, R]
  scores = jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)
  weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)

  rows = dense.on_matrix_units(weights.reshape(*merged, slots))
  values = jnp.einsum("btr,bdr->btd", rows, value)[:, :segment_len]
  return values.reshape(query.shape)


def pays_in_turn(num_lanes: int, segment_len: int) -> bool:
  """Whether a device is faster at one lane after the other.

  The scores of a lane then stay in the cache of a CPU, or in the vector memory
  of a TPU.
  """
  kind = hardware.device_kind()
  has_cache = kind == "cpu" or kind.startswith("TPU")
  return has_cache and num_lanes > 1 and segment_len > 1


def attend_in_turn(inputs: Inputs) -> shapes.RingQueries:
  """Attention of the segment to the ring, one lane after the other."""
  lanes, heads, _, _ = inputs.query.shape

  def attend(lane: jax.Array) -> jax.Array:
    own = inputs._replace(
      query=inputs.query[lane][None],
      key=jax.lax.dynamic_slice_in_dim(inputs.key, lane * heads, heads),
      value=jax.lax.dynamic_slice_in_dim(inputs.value, lane * heads, heads),
      reach=inputs.reach[lane][None],
    )
    return ring_attention(own)[0]

  return jax.lax.map(attend, jnp.arange(lanes, dtype=jnp.int32))


def _position_scores(
  query: shapes.RingQueries,
  position_key: RingPositionKeys,
  slot: jt.Int[shapes.Array, ""],
) -> jt.Float[shapes.Array, "B H T R"]:
  """Position scores by slot, of scaled queries.

  Row i needs the distances (slot + i - s) modulo R for the slots s: a window
  of R + T - 1 columns of the doubled distances, in which each row begins one
  column before the row above. Reading the window as rows that are one column
  shorter aligns them.
  """
  lanes, heads, rows, width = query.shape
  slots = position_key.once.shape[-1]
  start = slots - slot - rows
  columns = slots + rows - 1

  # With heads first, one product serves all lanes of a head.
  query = jnp.swapaxes(query, 0, 1).reshape(heads, lanes * rows, width)
  if lanes * rows < width:  # The scores are smaller than the keys.
    scores = _products(query, position_key.once)
    twice = jnp.concatenate([scores, scores], axis=-1)
    window = jax.lax.dynamic_slice_in_dim(twice, start, columns, axis=2)
  else:
    near = jax.lax.dynamic_slice_in_dim(
      position_key.twice, start, columns, axis=2
    )
    window = _products(query, near)

  window = window.reshape(heads, lanes, rows, columns)
  return jnp.swapaxes(_aligned(window, slots), 0, 1)


def _added_scores(
  added: jt.Float[shapes.Array, "H R"],
  slot: jt.Int[shapes.Array, ""],
  rows: int,
) -> jt.Float[shapes.Array, "H T R"]:
  """Numbers of the distances R-1 to 0, by slot, as `_position_scores` does."""
  heads, slots = added.shape
  twice = jnp.concatenate([added, added], axis=1)
  columns = slots + rows - 1
  start = slots - slot - rows
  window = jax.lax.dynamic_slice_in_dim(twice, start, columns, axis=1)
  window = jnp.broadcast_to(window[:, None], (heads, rows, columns))
  return _aligned(window, slots)


def _aligned(
  window: jt.Float[shapes.Array, "*heads T columns"], slots: int
) -> jt.Float[shapes.Array, "*heads T R"]:
  """Moves each row of a window of R + T - 1 columns to its slots."""
  *heads, rows, columns = window.shape
  if rows > 1:
    last = rows - 1 + rows * (columns - 1)
    flat = window.reshape(*heads, rows * columns)[..., rows - 1 : last]
    window = flat.reshape(*heads, rows, columns - 1)
  return window[..., :slots]


def _products(rows: jax.Array, keys: jax.Array) -> jax.Array:
  """Multiplies [H, I, Dh] by [H, Dh, J], added up in float32."""
  result = jnp.einsum(
    "hid,hdj->hij",
    dense.on_matrix_units(rows),
    keys,
    preferred_element_type=jnp.float32,
  )
  return result[:, : rows.shape[1]]
