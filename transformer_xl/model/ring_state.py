"""What one step of `kv_cache` hands to the next.

Shapes: N layers, B lanes.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import compressed_ring
from transformer_xl.model import ring_source


class State(NamedTuple):
  """The memory: a ring for each layer, and where to go on."""

  layers: tuple[ring_source.LayerCache | compressed_ring.LayerCache, ...]
  length: jt.Int[shapes.Array, "B"]  # Of the memory that is visible, in tokens.
  # Where the next token goes, [N] if rings have different lengths.
  slot: jt.Int[shapes.Array, "..."]
  position: jt.Int[shapes.Array, ""]  # Of the next token in its segment.
  num_read: jt.Int[shapes.Array, ""]  # Tokens; it may overflow.

  @property
  def num_lanes(self) -> int:
    """B."""
    return self.length.shape[0]

  def repeat_lane(self, count: int) -> "State":
    """The state of a single lane, in `count` lanes."""
    tiled = jax.tree.map(lambda r: jnp.tile(r, (count, 1, 1)), self.layers)
    return self._replace(layers=tiled, length=jnp.repeat(self.length, count))

  @property
  def slots(self) -> list[jax.Array]:
    """`slot` of each layer, a scalar."""
    return [*self.slot] if self.slot.ndim else [self.slot] * len(self.layers)

  def partition_specs(self) -> "State":
    """How a mesh splits it: by lanes, and rings by heads as well."""
    layers = tuple(layer.partition_specs() for layer in self.layers)
    specs: Any = (layers, P(mesh_lib.LANES), P(), P(), P())
    return State(*specs)


def reset(
  state: State,
  lanes: jt.Bool[shapes.Array, "B"],
  empty: tuple[ring_source.LayerCache, ...],
  config: schema.ModelConfig,
  *,
  mem_len: int,
) -> State:
  """Empties the memory of some lanes; `empty` has a slot for each layer."""
  if config.memory_start == "masked" or mem_len == 0:
    return state._replace(length=jnp.where(lanes, 0, state.length))
  num_heads = empty[0].keys.shape[0]
  rows = jnp.repeat(lanes, num_heads)[:, None, None]

  def emptied(ring, empty, slot):
    count = ring.keys.shape[-1]
    age = (slot - 1 - jnp.arange(count, dtype=jnp.int32)) % count
    positions = state.num_read - 1 - age
    fresh = ring_source.filled(config, empty, positions, lanes=lanes.shape[0])
    return jax.tree.map(functools.partial(jnp.where, rows), fresh, ring)

  layers = tuple(map(emptied, state.layers, empty, state.slots))
  return state._replace(layers=layers)
