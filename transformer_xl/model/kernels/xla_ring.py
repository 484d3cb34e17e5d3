"""Attention over a ring of cached keys and values, in XLA.

Nothing moves in a ring of R slots: the T queries' own keys and values are in
the slots from `slot` on, which do not pass the end, and the slot after them has
the oldest.

Shapes: B lanes, T queries, R slots, H heads, Dh head width. The ring has G
heads of keys and values, and H / G heads in a row attend to each. Lanes and
heads of the ring are one axis, B * G. With slots as the last axis a CPU
multiplies the row of a single token a third faster.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import scores as scores_lib
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import xla_attention

# A CPU computes more scores than these in parts, each of some queries and some
# slots. Fewer stay in its cache anyway, and take a tenth longer in parts.
_MOST_SCORES = 4 << 20
_LARGEST_PART = 512
_SMALLEST_PART = 128


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
    reach: the largest distance that each query may see: R - T + i at most for
      query i.
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
  slots = _Slots(jnp.zeros((), jnp.int32), inputs.key.shape[-1])
  scores = _scores(inputs, slots, _visible(inputs, slots))
  weights = jax.nn.softmax(scores, axis=-1).astype(inputs.query.dtype)

  merged = _by_ring_heads(weights, inputs.value)
  rows = dense.on_matrix_units(merged)
  values = jnp.einsum("btr,bdr->btd", rows, inputs.value)[:, : merged.shape[1]]
  return values.reshape(inputs.query.shape)


def pays_in_turn(num_lanes: int, segment_len: int) -> bool:
  """Whether a device is faster at some of the scores after the others.

  They then stay in the cache of a CPU, or in the vector memory of a TPU.
  """
  if hardware.is_cpu():
    return segment_len > 1
  is_tpu = hardware.device_kind().startswith("TPU")
  return is_tpu and num_lanes > 1 and segment_len > 1


def attend_in_turn(inputs: Inputs) -> shapes.RingQueries:
  """Attention of the segment to the ring, one lane after the other.

  A CPU also takes some of the queries and of the slots at a time, if there are
  many scores. A last part begins earlier where it would be shorter.
  """
  lanes, heads, segment_len, width = inputs.query.shape
  ring_heads = inputs.key.shape[0] // lanes
  num_slots = inputs.key.shape[-1]
  rows, count = segment_len, num_slots
  num_scores = heads * segment_len * num_slots
  if hardware.is_cpu() and num_scores > _MOST_SCORES:
    rows = _part(segment_len)
    count = _part(num_slots)
  num_parts = math.ceil(segment_len / rows)

  def attend(index: jax.Array) -> jax.Array:
    lane = index // num_parts
    first = jnp.minimum(index % num_parts * rows, segment_len - rows)
    query = jax.lax.dynamic_slice(
      inputs.query, (lane, 0, first, 0), (1, heads, rows, width)
    )
    own = inputs._replace(
      query=query,
      key=_of_lane(inputs.key, lane, ring_heads),
      value=_of_lane(inputs.value, lane, ring_heads),
      reach=jax.lax.dynamic_slice(inputs.reach, (lane, first), (1, rows)),
      slot=inputs.slot + first,
    )
    if count == num_slots:
      return ring_attention(own)[0]
    return _attend_by_blocks(own, count)[0]

  indices = jnp.arange(lanes * num_parts, dtype=jnp.int32)
  parts = jax.lax.map(attend, indices)  # [B * parts, H, rows, Dh]
  parts = parts.reshape(lanes, num_parts, heads, rows, width)
  parts = jnp.swapaxes(parts, 1, 2)
  before = parts[:, :, :-1].reshape(lanes, heads, -1, width)
  already = before.shape[2] + rows - segment_len  # Queries of the last part.
  return jnp.concatenate([before, parts[:, :, -1, already:]], axis=2)


class _Slots(NamedTuple):
  """Slots in a row."""

  first: jt.Int[shapes.Array, ""]
  size: int


class _Sums(NamedTuple):
  """The sums that a softmax over slots carries from block to block."""

  largest: jt.Float[shapes.Array, "B H T"]  # Score.
  # Weighted sums of the values, and last the sum of the weights themselves. A
  # weight is exp(score - largest).
  values: jt.Float[shapes.Array, "B H T Dh+1"]


def _part(length: int) -> int:
  """The size of the parts that `length` queries or slots are cut into."""
  for size in range(_LARGEST_PART, _SMALLEST_PART - 1, -1):
    if length % size == 0:
      return size
  num_parts = math.ceil(length / _LARGEST_PART)
  return math.ceil(length / num_parts)


def _attend_by_blocks(inputs: Inputs, count: int) -> shapes.RingQueries:
  """Attention of the segment to the ring, `count` slots at a time.

  Blocks that no query sees, of empty slots above all, are left out. The softmax
  is that of Milakov and Gimelshein (2018): sums are scaled down where a larger
  score is found.
  """
  num_slots = inputs.key.shape[-1]
  num_blocks = math.ceil(num_slots / count)
  dtype = inputs.query.dtype
  *by_query, width = inputs.query.shape
  ring_heads = inputs.value.shape[0]
  start = _Sums(
    # Above the score of what is not visible, whose weight is then 0.
    largest=jnp.full(by_query, jnp.finfo(jnp.float32).min / 2),
    values=jnp.zeros((*by_query, width + 1), jnp.float32),
  )
  ones = jnp.ones((ring_heads, count, 1), dtype)

  def attend(index: jax.Array, sums: _Sums) -> _Sums:
    begin = index * count
    slots = _Slots(jnp.minimum(begin, num_slots - count), count)
    visible = _visible(inputs, slots)
    if num_slots % count:
      # The last block begins earlier, with slots that the block before has.
      is_new = slots.first + jnp.arange(count, dtype=jnp.int32) >= begin
      visible &= is_new[None, None]

    def add(sums: _Sums) -> _Sums:
      scores = _scores(inputs, slots, visible)
      largest = jnp.maximum(sums.largest, jnp.max(scores, axis=-1))
      weights = jnp.exp(scores - largest[..., None])
      value = jnp.swapaxes(_of_slots(inputs.value, slots), 1, 2)
      # The product adds up the weights as well: that saves a pass over them.
      value = jnp.concatenate([value, ones], axis=-1)
      rows = _by_ring_heads(weights.astype(dtype), value)
      values = dense.product(rows, value).reshape(sums.values.shape)
      kept = jnp.exp(sums.largest - largest)
      return _Sums(largest, sums.values * kept[..., None] + values)

    return jax.lax.cond(jnp.any(visible), add, lambda sums: sums, sums)

  sums = jax.lax.fori_loop(0, num_blocks, attend, start)
  values, weight = jnp.split(sums.values, [width], axis=-1)
  return (values / weight).astype(dtype)


def _by_ring_heads(
  rows: jt.Float[shapes.Array, "B H T width"], ring: jax.Array
) -> jt.Float[shapes.Array, "BG rows width"]:
  """The rows of all queries that attend to each head of the ring's lanes."""
  return rows.reshape(ring.shape[0], -1, rows.shape[-1])


def _of_lane(
  ring: shapes.Ring, lane: jax.Array, heads: int
) -> jt.Float[shapes.Array, "G Dh R"]:
  """The keys or values of a lane, which has `heads` heads in the ring."""
  return jax.lax.dynamic_slice_in_dim(ring, lane * heads, heads)


def _of_slots(
  ring: shapes.Ring, slots: _Slots
) -> jt.Float[shapes.Array, "BG Dh slots"]:
  """The keys or values of some slots."""
  return jax.lax.dynamic_slice_in_dim(ring, slots.first, slots.size, axis=-1)


def _distances(
  inputs: Inputs, slots: _Slots
) -> jt.Int[shapes.Array, "T slots"]:
  """Distances from each query back to what is in each slot."""
  rows = jnp.arange(inputs.query.shape[2], dtype=jnp.int32)
  columns = slots.first + jnp.arange(slots.size, dtype=jnp.int32)
  distance = inputs.slot + rows[:, None] - columns[None]
  return jnp.where(distance < 0, distance + inputs.key.shape[-1], distance)


def _visible(
  inputs: Inputs, slots: _Slots
) -> jt.Bool[shapes.Array, "B T slots"]:
  """True where a query may attend to a slot."""
  return _distances(inputs, slots)[None] <= inputs.reach[:, :, None]


def _scores(
  inputs: Inputs, slots: _Slots, visible: jt.Bool[shapes.Array, "B T slots"]
) -> jt.Float[shapes.Array, "B H T slots"]:
  """Scores of some slots; the lowest number where they are not visible."""
  query = inputs.query
  *by_query, width = query.shape
  segment_len = query.shape[2]
  # Queries are scaled instead of scores, of which there are more.
  scale = jnp.asarray(width**-0.5, query.dtype)
  content_query = query
  position_query = query
  terms = inputs.distance
  if terms.biases is not None:
    content_bias, position_bias = terms.biases
    content_query = query + content_bias[None, :, None]
    position_query = query + position_bias[None, :, None]

  content_query = _by_ring_heads(content_query * scale, inputs.key)
  scores = _products(content_query, _of_slots(inputs.key, slots))
  scores = scores.reshape(*by_query, slots.size)
  if inputs.position_key is not None:
    scores += _position_scores(
      position_query * scale, inputs.position_key, inputs.slot, slots
    )
  if terms.slopes is not None:
    distance = _distances(inputs, slots)
    scores -= xla_attention.linear_penalties(terms.slopes, distance)[None]
  if terms.added is not None:
    added = _added_scores(terms.added, inputs.slot, segment_len, slots)
    scores += added[None]
  return jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)


def _position_scores(
  query: shapes.RingQueries,
  position_key: RingPositionKeys,
  slot: jt.Int[shapes.Array, ""],
  slots: _Slots,
) -> jt.Float[shapes.Array, "B H T slots"]:
  """Position scores of some slots, of scaled queries.

  Row i needs the distances (slot + i - s) modulo R for the slots s: a window
  of T - 1 columns more than slots of the doubled distances, in which each row
  begins one column before the row above. Reading the window as rows that are
  one column shorter aligns them.
  """
  lanes, heads, rows, width = query.shape
  num_slots = position_key.once.shape[-1]
  start = num_slots - slot - rows + slots.first
  columns = slots.size + rows - 1

  # With heads first, one product serves all lanes of a head.
  query = jnp.swapaxes(query, 0, 1).reshape(heads, lanes * rows, width)
  is_whole = slots.size == num_slots
  if is_whole and lanes * rows < width:  # The scores are smaller than the keys.
    scores = _products(query, position_key.once)
    twice = jnp.concatenate([scores, scores], axis=-1)
    window = jax.lax.dynamic_slice_in_dim(twice, start, columns, axis=2)
  else:
    near = jax.lax.dynamic_slice_in_dim(
      position_key.twice, start, columns, axis=2
    )
    window = _products(query, near)

  window = window.reshape(heads, lanes, rows, columns)
  return jnp.swapaxes(_aligned(window, slots.size), 0, 1)


def _added_scores(
  added: jt.Float[shapes.Array, "H R"],
  slot: jt.Int[shapes.Array, ""],
  rows: int,
  slots: _Slots,
) -> jt.Float[shapes.Array, "H T slots"]:
  """Numbers of the distances R-1 to 0, by slot, as `_position_scores` does."""
  heads, num_slots = added.shape
  twice = jnp.concatenate([added, added], axis=1)
  columns = slots.size + rows - 1
  start = num_slots - slot - rows + slots.first
  window = jax.lax.dynamic_slice_in_dim(twice, start, columns, axis=1)
  window = jnp.broadcast_to(window[:, None], (heads, rows, columns))
  return _aligned(window, slots.size)


def _aligned(
  window: jt.Float[shapes.Array, "*heads T columns"], count: int
) -> jt.Float[shapes.Array, "*heads T slots"]:
  """Moves each row of a window of `count` + T - 1 columns to its slots."""
  *heads, rows, columns = window.shape
  if rows > 1:
    last = rows - 1 + rows * (columns - 1)
    flat = window.reshape(*heads, rows * columns)[..., rows - 1 : last]
    window = flat.reshape(*heads, rows, columns - 1)
  return window[..., :count]


def _products(rows: jax.Array, keys: jax.Array) -> jax.Array:
  """Multiplies [H, I, Dh] by [H, Dh, J], added up in float32."""
  result = jnp.einsum(
    "hid,hdj->hij",
    dense.on_matrix_units(rows),
    keys,
    preferred_element_type=jnp.float32,
  )
  return result[:, : rows.shape[1]]
