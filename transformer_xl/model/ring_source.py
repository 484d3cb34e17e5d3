"""Keys and values from a ring of slots, for the layers of `kv_cache`.

Shapes: B lanes, T tokens, H heads, Dh head width, R slots, D model width.
Lanes and heads of a ring are one axis, B * H.
"""

import dataclasses
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
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import table
from transformer_xl.model.kernels import ring as ring_lib


class LayerCache(NamedTuple):
  """Keys and values of one layer, by slot."""

  keys: shapes.Ring
  values: shapes.Ring

  def partition_specs(self) -> "LayerCache":
    """How a mesh splits it: by lanes and heads."""
    spec: Any = P((*mesh_lib.LANES, "tensor"))
    return LayerCache(spec, spec)


class Slots(NamedTuple):
  """What one layer remembers."""

  cache: Any  # A `LayerCache`, or that of `compressed_ring`.
  distance: encoding.DistanceTerms | None  # Keys are `ring.RingPositionKeys`.
  weights: compression.Weights | None  # Of the convolution that compresses.


class Ring(NamedTuple):
  """A source of keys and values (`sources.Source`): slots of a ring."""

  first_position: jt.Int[shapes.Array, ""]
  reach: shapes.Reach
  slot: jt.Int[shapes.Array, ""]
  num_read: jt.Int[shapes.Array, ""]  # Tokens before the step.

  def context(self, hidden: shapes.Hidden, memory: Slots) -> shapes.Context:
    """Only the segment is projected."""
    del memory
    return hidden

  def attend(
    self,
    module: Any,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: Slots,
    *,
    dropout: dropout_lib.AttentionDropout | None,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Queries, LayerCache]:
    """Writes new keys and values into the ring, and attends to all of it."""
    del queries, dropout, dropout_lanes
    config = module.config
    query, written = projected(module, context)
    positions = self.num_read + jnp.arange(query.shape[2], dtype=jnp.int32)
    query = placed_queries(config, query, positions)
    written = placed_keys(config, written, positions)
    cache = self.write(memory.cache, written)
    return self.read(module, query, cache, memory.distance), cache

  def write(self, cache: LayerCache, written: LayerCache) -> LayerCache:
    """The ring with keys and values of the segment."""
    return LayerCache(
      *(
        jax.lax.dynamic_update_slice_in_dim(old, new, self.slot, axis=-1)
        for old, new in zip(cache, written, strict=True)
      )
    )

  def read(
    self,
    module: Any,
    query: shapes.RingQueries,
    cache: LayerCache,
    distance: encoding.DistanceTerms | None,
  ) -> shapes.Queries:
    """Attends to a ring with the segment in it, all with their positions."""
    values = table.of(module.config).attend_ring(
      module.config,
      query,
      *cache,
      distance,
      reach=self.reach,
      slot=self.slot,
    )
    return jnp.swapaxes(values, 1, 2)


@dataclasses.dataclass(frozen=True)
class EmptySlot:
  """A source that only looks at parameters, for `Reader.freeze`."""

  biases: shapes.BiasPair | None
  positions: shapes.Positions | None
  num_slots: int
  first_position: int = 0

  def context(self, hidden: shapes.Hidden, memory: None) -> shapes.Context:
    """An empty slot is a hidden state of zeros, whatever the layer adds."""
    del memory
    return jnp.zeros_like(hidden)

  def attend(
    self,
    module: Any,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: None,
    **options: Any,
  ) -> tuple[shapes.Queries, tuple[encoding.DistanceTerms | None, LayerCache]]:
    """Keeps terms of distances, and the key and value of an empty slot."""
    del queries, memory, options
    order = table.of(module.config)
    biases = self.biases or order.layer_biases(module)
    project = parameters.Projections(module, dropout_lanes=None)
    query = project("query", context)
    empty = LayerCache(*(_slots(project(n, context)) for n in ("key", "value")))
    distance = order.distance_terms(
      module, project, self.positions, self.num_slots, biases
    )
    if distance is not None and distance.keys is not None:
      distance = distance._replace(keys=ring_lib.position_keys(distance.keys))
    return query, (distance, empty)


def placed_queries(
  config: schema.ModelConfig, query: shapes.RingQueries, positions: jax.Array
) -> shapes.RingQueries:
  """Queries at the positions [T]."""
  return table.of(config).placed(config, query, positions[None, None, :, None])


def placed_keys(
  config: schema.ModelConfig, cache: LayerCache, positions: jax.Array
) -> LayerCache:
  """Slots at the positions [R]."""
  places = positions[None, None]
  keys = table.of(config).placed(config, cache.keys, places, axis=1)
  return cache._replace(keys=keys)


def filled(
  config: schema.ModelConfig,
  empty: LayerCache,
  positions: jax.Array,
  *,
  lanes: int,
) -> LayerCache:
  """A ring of empty slots, of which `empty` is one, at the positions [R]."""
  tiling = (lanes, 1, positions.shape[0])
  ring = LayerCache(*(jnp.tile(slot, tiling) for slot in empty))
  return placed_keys(config, ring, positions)


def newest(cache: Any, slot: jax.Array, count: int) -> LayerCache:
  """The `count` slots before `slot`, a scalar; oldest first."""
  slots = slot - count + jnp.arange(count, dtype=jnp.int32)
  kept = slots % cache.keys.shape[-1]
  return LayerCache(*(ring[..., kept] for ring in cache))


def nearest(
  terms: encoding.DistanceTerms | None, count: int
) -> encoding.DistanceTerms | None:
  """The terms of a ring with fewer slots, `count`."""
  if terms is None or terms.keys is None:
    return terms
  nearest_keys = terms.keys.once[..., -count:]
  return terms._replace(keys=ring_lib.around(nearest_keys))


def joined(layer: shapes.PyTree, config: schema.ModelConfig) -> shapes.PyTree:
  """A layer with the kernels of queries, keys and values side by side.

  They are joined within each head, so that a mesh that splits heads splits no
  kernel.
  """
  attention_params = dict(layer["attention"])
  kernels = [attention_params.pop(name) for name in ("query", "key", "value")]
  shape = (config.model_dim, config.num_heads, 1, config.head_dim)
  kernel = jnp.concatenate(
    [kernel.reshape(shape) for kernel in kernels], axis=2
  )
  attention_params["joined"] = kernel.reshape(config.model_dim, -1)
  return {**layer, "attention": attention_params}


def projected(
  module: Any, rows: shapes.Context
) -> tuple[shapes.RingQueries, LayerCache]:
  """Queries [B, H, T, Dh]; keys and values [B * H, Dh, T]."""
  project = parameters.Projections(module, dropout_lanes=None)
  rows = project("joined", rows, num_kernels=3)
  heads = rows.reshape(*rows.shape[:3], 3, -1)  # [B, T, H, 3, Dh]
  query, key, value = (heads[:, :, :, index] for index in range(3))
  return jnp.swapaxes(query, 1, 2), LayerCache(_slots(key), _slots(value))


def _slots(rows: shapes.Keys) -> shapes.Ring:
  """[B, T, H, Dh] to [B * H, Dh, T]."""
  heads = jnp.moveaxis(rows, 1, 3)  # [B, H, Dh, T]
  return heads.reshape(-1, *heads.shape[2:])
