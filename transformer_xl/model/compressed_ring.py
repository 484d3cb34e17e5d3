"""A ring of keys and values whose oldest states are compressed.

Slots lie in order: C compressed ones, those of memory, from `slot` on those of
a step, and slots that are not used yet. After a step all of them move to the
left by what has left memory. Up to c - 1 states wait there for others to be
compressed with, so steps may have any length (docs/specification.md, section
8). With distances modulo R, unused slots are farther than any reach.

Shapes: B lanes, T tokens, R slots, C compressed slots, c states in each of
them, M memory length, D model width. Lanes and heads of a ring are one axis.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import compression
from transformer_xl.model import ring_source
from transformer_xl.model import visibility

States = jt.Float[shapes.Array, "B W D"]  # In the W = R - C slots from C on.


class LayerCache(NamedTuple):
  """Keys and values of one layer, and the states in its memory."""

  ring: ring_source.LayerCache
  states: States

  def partition_specs(self) -> "LayerCache":
    """How a mesh splits it: by lanes, and rings by heads as well."""
    states: Any = P(mesh_lib.LANES)
    return LayerCache(self.ring.partition_specs(), states)


class Layout(NamedTuple):
  """Where the slots are."""

  config: schema.ModelConfig
  mem_len: int  # M.
  compressed_len: int  # C.

  @property
  def first(self) -> int:
    """Where the first step is written."""
    return self.compressed_len + self.mem_len

  def num_slots(self, step_len: int) -> int:
    """R, for steps of at most `step_len` tokens."""
    return self.first + self.config.compression_rate - 1 + step_len

  def start(
    self, rings: Iterable[ring_source.LayerCache]
  ) -> tuple[LayerCache, ...]:
    """Adds the states of an empty memory to the rings of all layers."""
    config = self.config

    def with_states(ring):
      lanes = ring.keys.shape[0] // config.num_heads
      count = ring.keys.shape[-1] - self.compressed_len
      shape = (lanes, count, config.model_dim)
      return LayerCache(ring, jnp.zeros(shape, config.dtype))

    return tuple(map(with_states, rings))

  def place(
    self,
    slot: jt.Int[shapes.Array, ""],
    length: jt.Int[shapes.Array, "B"],
    count: int | jax.Array,
  ) -> "Place":
    """Where a step of `count` tokens is, for a visible `length` in tokens.

    The count is a scalar.
    """
    rate = self.config.compression_rate
    held = slot - self.compressed_len
    num_leaving = (held + count - self.mem_len) // rate
    after = held + count - num_leaving * rate
    return Place(
      visibility.visible_positions(length, held, rate=rate),
      num_leaving,
      after + self.compressed_len * rate,
      after + self.compressed_len,
    )


class Place(NamedTuple):
  """A step in the ring."""

  visible: jt.Int[shapes.Array, "B"]  # Positions before the step.
  num_leaving: jt.Int[shapes.Array, ""]  # Compressed slots that it adds.
  capacity: jt.Int[shapes.Array, ""]  # Most tokens that are held after it.
  next_slot: jt.Int[shapes.Array, ""]


@dataclasses.dataclass(frozen=True)
class CompressedRing:
  """A source of keys and values (`sources.Source`): slots that move."""

  ring: ring_source.Ring
  layout: Layout
  place: Place

  @property
  def first_position(self) -> jax.Array:
    """Of the ring, a scalar."""
    return self.ring.first_position

  def context(
    self, hidden: shapes.Hidden, memory: ring_source.Slots
  ) -> shapes.Context:
    """The compressed slots that a step may add, then the segment."""
    config = self.layout.config
    rate = config.compression_rate
    count = (rate - 1 + hidden.shape[1]) // rate
    states = self._with_segment(memory.cache.states, hidden)
    slots = compression.compress(
      states[:, : count * rate], memory.weights, config=config
    )
    return jnp.concatenate([slots, hidden], axis=1)

  def attend(
    self,
    module: Any,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: ring_source.Slots,
    **options: Any,
  ) -> tuple[shapes.Queries, ring_source.LayerCache]:
    """Attends as `ring_source.Ring` does, and moves the slots."""
    del options
    query, projected = ring_source.projected(module, context)
    first = context.shape[1] - queries.shape[1]  # Of the segment.
    added, written = (
      ring_source.LayerCache(*(rows[..., part] for rows in projected))
      for part in (slice(first), slice(first, None))
    )
    ring = self.ring.write(memory.cache.ring, written)
    # Compressing changes distances, so that slots are the positions.
    config, count = module.config, ring.keys.shape[-1]
    positions = jnp.arange(count, dtype=jnp.int32)
    placed = ring_source.placed_keys(config, ring, positions)
    positions = self.ring.slot + positions[: queries.shape[1]]
    query = ring_source.placed_queries(config, query[:, :, first:], positions)
    values = self.ring.read(module, query, placed, memory.distance)
    return values, ring_source.LayerCache(*map(self._moved, ring, added))

  def kept(
    self,
    ring: ring_source.LayerCache,
    memory: ring_source.Slots,
    hidden: shapes.Hidden,
  ) -> LayerCache:
    """What `attend` returned, with the states after a step of the layer."""
    states = self._with_segment(memory.cache.states, hidden)
    return LayerCache(ring, self._without_oldest(states, axis=1))

  def _with_segment(self, states, hidden):
    start = self.ring.slot - self.layout.compressed_len
    return jax.lax.dynamic_update_slice_in_dim(states, hidden, start, axis=1)

  def _moved(self, ring: shapes.Ring, added: shapes.Ring) -> shapes.Ring:
    count = self.layout.compressed_len
    older = jnp.concatenate([ring[..., :count], added], axis=-1)
    older = jax.lax.dynamic_slice_in_dim(
      older, self.place.num_leaving, count, axis=-1
    )
    newer = self._without_oldest(ring[..., count:], axis=-1)
    return jnp.concatenate([older, newer], axis=-1)

  def _without_oldest(self, array: jax.Array, *, axis: int) -> jax.Array:
    count = self.place.num_leaving * self.layout.config.compression_rate
    return jnp.roll(array, -count, axis=axis)
