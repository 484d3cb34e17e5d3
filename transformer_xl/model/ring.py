"""Attention with fixed parameters: keys and values in a ring of slots.

While parameters do not change, neither the keys and values of memory nor the
keys of distances have to be projected again for every segment. This is the
streaming form of `mixers.attention`, with the same results for every encoding.
A layer has R slots, into which new tokens are written, so nothing moves.

Shapes: B lanes, T tokens, M memory length, R slots, H heads, G heads of keys
and values, Dh head width, D model width. Lanes and heads of a ring are one
axis, B * G: with a single lane of its own axis, XLA would copy the ring in a
loop over tokens instead of writing into it.
"""

import functools
import math
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import norm as norm_lib
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import xla_ring
from transformer_xl.model.mixers import mixer


class Cache(NamedTuple):
  """Keys and values by slot."""

  keys: shapes.Ring
  values: shapes.Ring


class RingState(NamedTuple):
  """The state of one layer: its cache, and where it writes next."""

  cache: Cache
  slot: jt.Int[shapes.Array, ""]  # Where the next token goes.

  def partition_specs(self) -> "RingState":
    """The ring's PartitionSpecs, which split it by lanes and heads."""
    rows = mesh_lib.spec((*mesh_lib.LANES, "tensor"))
    whole = mesh_lib.spec()
    return RingState(Cache(rows, rows), whole)

  def repeat_lane(self, count: int) -> "RingState":
    """The ring of a single lane, in `count` lanes."""
    tiled = jax.tree.map(lambda rows: jnp.tile(rows, (count, 1, 1)), self.cache)
    return RingState(tiled, self.slot)


class Prepared(NamedTuple):
  """Arrays that are computed from a layer's parameters alone."""

  # Of the distances R-1 to 0: keys, if there are any, and all other terms.
  position_key: xla_ring.RingPositionKeys | None
  distance: scores.DistanceTerms
  # Key and value [G, Dh, 1] of a hidden state of zeros.
  empty: Cache


def at_one_slot(
  layers: tuple[mixer.LayerState, ...],
) -> tuple[mixer.LayerState, ...]:
  """Rings of one length, which are at equal slots, with one of these slots.

  XLA then computes masks once for all layers: arrays that a loop carries are
  never known to be equal.
  """
  slots = _slot_by_length(layers)
  result = []
  for layer in layers:
    if isinstance(layer, RingState):
      layer = layer._replace(slot=slots[layer.cache.keys.shape[-1]])
    result.append(layer)
  return tuple(result)


def wraps(layers: tuple[mixer.LayerState, ...], num_tokens: int) -> bool:
  """Whether so many tokens would be written around the end of a ring.

  That is not known, and False, where a program is traced. Single tokens always
  fit, so that nothing waits for their slots.
  """
  if num_tokens == 1:
    return False
  return any(
    int(slot) + num_tokens > count
    for count, slot in _slot_by_length(layers).items()
    if not isinstance(slot, jax.core.Tracer)
  )


def _slot_by_length(
  layers: tuple[mixer.LayerState, ...],
) -> dict[int, jax.Array]:
  """The next slot of the rings of each length, which are at equal slots."""
  result: dict[int, jax.Array] = {}
  for layer in layers:
    if isinstance(layer, RingState):
      result.setdefault(layer.cache.keys.shape[-1], layer.slot)
  return result


def num_slots(mem_len: int, step_len: int) -> int:
  """The number of slots, R, for steps of at most `step_len` tokens.

  There is room for the memory, in whole steps, and for one more step.

  Without memory a step has to be a segment, so that a single token sees the
  segment that it completes.
  """
  return (math.ceil(mem_len / step_len) + 1) * step_len


class RingAttention(mixer.Mixer):
  """Attention to a ring of keys and values.

  A step must not wrap around the ring, so read full segments, then at most one
  partial segment, then single tokens.
  """

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: RingState,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Writes the segment into the ring, and attends to all of it."""
    config = self.config
    encoding = encodings.of(config)
    prepared: Prepared = self.get_variable("params", "prepared")
    mem_len = self.settings.mem_len
    segment_len = hidden.shape[1]

    # Queries [B, H, T, Dh]; keys and values [B * G, Dh, T].
    kernel: jax.Array = self.get_variable("params", "joined")
    rows = dense.times(norm(hidden), kernel)
    if config.qkv_bias:
      bias: jax.Array = self.get_variable("params", "joined_bias")
      rows += bias.astype(rows.dtype)[None, None]
    by_token = rows.shape[:2]
    heads = rows.reshape(*by_token, config.num_kv_heads, -1, config.head_dim)
    query = heads[:, :, :, :-2].reshape(*by_token, -1, config.head_dim)
    query = parameters.normalised_heads(self, "query", query)
    key = parameters.normalised_heads(self, "key", heads[:, :, :, -2])
    query = jnp.swapaxes(query, 1, 2)
    written = Cache(_to_slots(key), _to_slots(heads[:, :, :, -1]))

    # Positions count from the first token that was read, so that a key is
    # placed once.
    step = shared.step
    assert step is not None
    positions = step.num_read + jnp.arange(segment_len, dtype=jnp.int32)
    query = encoding.placed(config, query, positions[None, None, :, None])
    written = _placed(config, written, positions)
    cache = state.cache
    attends_zeros = config.memory_start == "zeros" and mem_len > 0
    if attends_zeros and shared.forgets is not None:
      cache = _forget(config, state, prepared.empty, shared)
    cache = Cache(
      keys=_write(cache.keys, written.keys, state.slot),
      values=_write(cache.values, written.values, state.slot),
    )

    num_visible = jnp.minimum(shared.length, mem_len)
    if mem_len == 0:  # A step sees what was read of its segment.
      num_visible = jnp.minimum(shared.length, step.first_position)
    elif config.memory_start == "zeros":
      num_visible = jnp.full_like(shared.length, mem_len)
    reach = self.reach(shared, num_visible, mem_len)
    inputs = xla_ring.Inputs(
      query=query,
      key=cache.keys,
      value=cache.values,
      reach=reach,
      slot=state.slot,
      position_key=prepared.position_key,
      distance=prepared.distance,
    )
    values = dispatch.ring_attention(inputs, config.attention)
    output = parameters.project_output(
      self, jnp.swapaxes(values, 1, 2), dropout_lanes=shared.dropout_lanes
    )
    count = shared.num_counted(segment_len)
    slot = (state.slot + count) % cache.keys.shape[-1]
    return output, mixer.Kept(RingState(cache, slot))


class Streaming:
  """The streaming form of attention: its parameters and its state, a ring."""

  form: ClassVar[type[mixer.Mixer]] = RingAttention

  @staticmethod
  def prepare(
    config: schema.ModelConfig,
    settings: mixer.Settings,
    layer: shapes.PyTree,
    *,
    name: str,
    biases: shapes.BiasPair | None,
    step_len: int,
  ) -> shapes.PyTree:
    """The layer's parameters, and arrays that are computed from them.

    The kernels of queries, keys and values are joined within each head of keys
    and values, so that a mesh that splits heads splits no kernel.
    """
    of_attention = layer[name]
    kinds = ("query", "key", "value")

    def joined(arrays: list[jax.Array]) -> jax.Array:
      """Columns of queries, a key and a value, by the latters' head."""
      heads = [
        array.reshape(*array.shape[:-1], config.num_kv_heads, -1)
        for array in arrays
      ]
      side_by_side = jnp.concatenate(heads, axis=-1)
      return side_by_side.reshape(*side_by_side.shape[:-2], -1)

    joined_arrays = {"joined": joined([of_attention[kind] for kind in kinds])}
    if config.qkv_bias:
      biases_of = [of_attention[f"{kind}_bias"] for kind in kinds]
      joined_arrays["joined_bias"] = joined(biases_of)
    # Whatever the layer adds, an empty slot is a hidden state of zeros.
    row = jnp.zeros((1, 1, config.model_dim), config.dtype)
    if config.pre_norm:
      norm = norm_lib.Norm(config)
      row = jnp.asarray(norm.apply({"params": layer["mixer_norm"]}, row))
    slots = num_slots(settings.mem_len, step_len)
    preparation = _Preparation(config, settings, slots)
    prepared = preparation.apply({"params": of_attention}, row, biases)
    scales = {
      scale: of_attention[scale]
      for scale in ("query_scale", "key_scale")
      if config.qk_norm
    }
    of_ring = {
      **joined_arrays,
      "output": of_attention["output"],
      "prepared": prepared,
      **scales,
    }
    return {**layer, name: of_ring}

  @staticmethod
  def start(
    config: schema.ModelConfig,
    parameters: shapes.PyTree,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> RingState:
    """A ring of empty slots, before the first token."""
    before = jnp.arange(-num_slots(mem_len, step_len), 0, dtype=jnp.int32)
    cache = _filled(config, parameters["prepared"].empty, before, batch_size)
    return RingState(cache, jnp.zeros((), jnp.int32))

  @staticmethod
  def for_tokens(
    parameters: shapes.PyTree, state: RingState, *, mem_len: int
  ) -> tuple[shapes.PyTree, RingState]:
    """Continues in M + 1 slots.

    Every token reads the whole ring, so slots for a full segment would only
    cost time. The next token overwrites the oldest.
    """
    if mem_len == 0:
      return parameters, state
    count = num_slots(mem_len, 1)
    cache = _newest(state, count=count)
    prepared = parameters["prepared"]
    position_key = prepared.position_key
    if position_key is not None:
      position_key = xla_ring.around(position_key.once[..., -count:])
    terms = prepared.distance
    if terms.added is not None:
      terms = terms._replace(added=terms.added[:, -count:])
    prepared = prepared._replace(position_key=position_key, distance=terms)
    start = RingState(cache, jnp.zeros((), jnp.int32))
    return {**parameters, "prepared": prepared}, start


class _Preparation(nn.Module):
  """Computes `Prepared` from the parameters of one layer's attention."""

  config: schema.ModelConfig
  settings: mixer.Settings
  num_slots: int

  @nn.compact
  def __call__(
    self,
    row: jt.Float[shapes.Array, "1 1 D"],
    biases: shapes.BiasPair | None,
  ) -> Prepared:
    """Projects an empty state and the distances.

    `row` is a state of zeros, normalised in a pre-norm model. `biases` are u
    and v, if all layers share them.
    """
    config = self.config
    encoding = encodings.of(config)
    biases = biases or encoding.layer_biases(self)
    project = parameters.Projections(self, dropout_lanes=None)
    # Heads of keys and values come repeated, `num_shares` times in a row.
    num_shares = config.num_heads // config.num_kv_heads
    key = project("key", row)[:, :, ::num_shares]
    value = project("value", row)[:, :, ::num_shares]
    key = parameters.normalised_heads(self, "key", key)
    empty = Cache(_to_slots(key), _to_slots(value))
    distances = encoding.positions(
      config, self.num_slots, clamp_len=self.settings.clamp_len
    )
    terms = encoding.distance_terms(
      self, project, distances, self.num_slots, biases
    )
    position_key = None
    if terms.keys is not None:
      position_key = xla_ring.position_keys(terms.keys)
    return Prepared(position_key, terms._replace(keys=None), empty)


def _placed(
  config: schema.ModelConfig, cache: Cache, positions: jax.Array
) -> Cache:
  """The cache with its keys changed by their positions, [R]."""
  places = positions[None, None]
  keys = encodings.of(config).placed(config, cache.keys, places, axis=1)
  return cache._replace(keys=keys)


def _filled(
  config: schema.ModelConfig,
  empty: Cache,
  positions: jax.Array,
  batch_size: int,
) -> Cache:
  """A ring of empty slots at the positions [R]."""
  tiling = (batch_size, 1, positions.shape[0])
  ring = Cache(jnp.tile(empty.keys, tiling), jnp.tile(empty.values, tiling))
  return _placed(config, ring, positions)


def _forget(
  config: schema.ModelConfig,
  state: RingState,
  empty: Cache,
  shared: mixer.Shared,
) -> Cache:
  """The ring with empty slots in the lanes that forget."""
  assert shared.forgets is not None
  assert shared.step is not None
  num_lanes = shared.forgets.shape[0]
  rows = jnp.repeat(shared.forgets, config.num_kv_heads)[:, None, None]
  count = state.cache.keys.shape[-1]
  age = (state.slot - 1 - jnp.arange(count, dtype=jnp.int32)) % count
  positions = shared.step.num_read - 1 - age
  fresh = _filled(config, empty, positions, num_lanes)
  return jax.tree.map(functools.partial(jnp.where, rows), fresh, state.cache)


# Compiled once for all layers. Operation by operation, that takes longer.
@functools.partial(jax.jit, static_argnames="count")
def _newest(state: RingState, *, count: int) -> Cache:
  """The newest `count` slots, oldest first."""
  slots = state.slot - count + jnp.arange(count, dtype=jnp.int32)
  kept = slots % state.cache.keys.shape[-1]
  return jax.tree.map(lambda ring: ring[..., kept], state.cache)


def _write(
  ring: shapes.Ring,
  rows: jt.Float[shapes.Array, "BG Dh T"],
  slot: jt.Int[shapes.Array, ""],
) -> shapes.Ring:
  """The ring with new rows in the slots from `slot` on.

  In bfloat16 on a CPU it has no gradient.
  """
  if ring.dtype != jnp.bfloat16 or not hardware.is_cpu():
    return jax.lax.dynamic_update_slice_in_dim(ring, rows, slot, axis=-1)
  # XLA would convert the whole ring to float32 and back. Bits it writes in
  # place.
  bits = jax.lax.dynamic_update_slice_in_dim(
    jax.lax.bitcast_convert_type(ring, jnp.uint16),
    jax.lax.bitcast_convert_type(rows, jnp.uint16),
    slot,
    axis=-1,
  )
  return jax.lax.bitcast_convert_type(bits, jnp.bfloat16)


def _to_slots(rows: jt.Float[shapes.Array, "B T G Dh"]) -> shapes.Ring:
  """Rearranges rows for a ring, from [B, T, G, Dh] to [B * G, Dh, T]."""
  heads = jnp.moveaxis(rows, 1, 3)  # [B, G, Dh, T]
  return heads.reshape(-1, *heads.shape[2:])
