"""The model with its parameters held fixed: cached keys and values.

While parameters do not change, the keys and values of memory need not be
projected again for every segment, nor those of the distances. `step` gives
what the model gives with hidden states as memory. Its memory is a ring of R
slots that new tokens are written into, so nothing is moved:

    reader = inference.Reader(config.model, mem_len=1600, segment_len=128,
                              clamp_len=1000, same_length=True)
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=1)
    log_probs, state = reader.step(frozen, state, tokens, resets)

Shapes: B lanes, T tokens, N layers, H heads, Dh head width, R slots.
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import distances
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import ring as ring_lib


class LayerCache(NamedTuple):
  """Keys and values of one layer, by slot; see `pack` for the other shape."""

  keys: jt.Float[shapes.Array, "*BH Dh R"]  # [B, H, Dh, R] or [B*H, Dh, R].
  values: jt.Float[shapes.Array, "*BH Dh R"]


class State(NamedTuple):
  """What one step hands to the next."""

  layers: tuple[LayerCache, ...]
  length: jt.Int[shapes.Array, "B"]  # Of the memory that is visible.
  slot: jt.Int[shapes.Array, ""]  # Where the next token goes.


class Frozen(NamedTuple):
  """Parameters, and what follows from them alone."""

  params: shapes.PyTree  # Those outside the layers.
  layers: tuple[shapes.PyTree, ...]  # One tree a layer: a slice costs a copy.
  position_keys: tuple[ring_lib.RingPositionKeys, ...]
  empty: tuple[LayerCache, ...]  # [1, H, Dh, 1]: an empty slot, if attended.


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads tokens with fixed parameters.

  Attributes:
    config: of the model.
    mem_len: M.
    segment_len: the most tokens in a step. A step's tokens may not go around
      the end of the ring: read whole segments, at last a part of one, and from
      then on single tokens.
    clamp_len: distances beyond it share its encoding; 0 for none.
    same_length: every query sees equally many keys.
  """

  config: schema.ModelConfig
  mem_len: int
  segment_len: int
  clamp_len: int
  same_length: bool

  def __post_init__(self):
    if self.config.encoding != "relative":
      raise errors.UserError(
        "keys and values can be cached with model.encoding=relative only: it "
        f"is {self.config.encoding}; use memory of hidden states."
      )

  @property
  def num_slots(self) -> int:
    """R: memory and one segment, in whole segments."""
    memory = math.ceil(self.mem_len / self.segment_len)
    return (memory + 1) * self.segment_len

  def for_tokens(self, frozen: Frozen, state: State) -> "Continued":
    """Goes on by single tokens, in rings of M + 1 slots.

    Slots for a whole segment would be read for nothing with every token.
    """
    reader = dataclasses.replace(self, segment_len=1)
    slots = jnp.arange(reader.num_slots, dtype=jnp.int32)
    # The newest ones, oldest first; what is written next takes the oldest.
    kept = (state.slot - reader.num_slots + slots) % self.num_slots
    layers = jax.tree.map(lambda ring: ring[..., kept], state.layers)
    keys = tuple(
      _around(key.once[..., -reader.num_slots :])
      for key in frozen.position_keys
    )
    start = jnp.zeros((), jnp.int32)
    return Continued(
      reader,
      frozen._replace(position_keys=keys),
      State(layers, state.length, start),
    )

  def freeze(self, params: shapes.PyTree) -> Frozen:
    """Computes once what does not depend on the text."""
    config = self.config
    layers = tuple(
      _joined(
        jax.tree.map(lambda leaf, index=index: leaf[index], params["layers"]),
        config,
      )
      for index in range(config.num_layers)
    )
    encodings = distances.position_encodings(
      self.num_slots, config.model_dim, clamp_len=self.clamp_len
    ).astype(config.dtype)
    keys = (
      _heads(encodings[None], layer["attention"]["position"], config)[0, :, 0]
      for layer in layers
    )
    zeros = jnp.zeros((1, 1, config.model_dim), config.dtype)
    return Frozen(
      {name: tree for name, tree in params.items() if name != "layers"},
      layers,
      tuple(_around(jnp.swapaxes(key, 1, 2)) for key in keys),
      tuple(_project(layer, zeros, config)[1] for layer in layers),
    )

  def start(self, frozen: Frozen, *, batch_size: int) -> State:
    """The memory before the first token."""
    config = self.config
    shape = (batch_size, config.num_heads, config.head_dim, self.num_slots)
    fill = 0 if config.memory_start == "masked" else self.mem_len
    layers = jax.tree.map(
      lambda slot: jnp.broadcast_to(slot, shape), frozen.empty
    )
    length = jnp.full((batch_size,), fill, jnp.int32)
    return State(layers, length, jnp.zeros((), jnp.int32))

  def step(
    self,
    frozen: Frozen,
    state: State,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], State]:
    """Log-probabilities of every next token, and the next state."""
    hidden, state = self.read(frozen, state, tokens, resets)
    return adaptive_softmax.log_probs(hidden, self.head(frozen)), state

  def nll(
    self,
    frozen: Frozen,
    state: State,
    inputs: shapes.Tokens,
    targets: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Losses, State]:
    """Negative log-probabilities of the targets, and the next state."""
    hidden, state = self.read(frozen, state, inputs, resets)
    losses = adaptive_softmax.nll(
      hidden,
      targets,
      self.head(frozen),
      capacities=self.config.cluster_capacities,
    )
    return losses, state

  def read(
    self,
    frozen: Frozen,
    state: State,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Hidden, State]:
    """The last layer's states, and the next state."""
    config = self.config
    if resets is None:  # Nor is it looked for, which may touch every slot.
      resets = jnp.zeros(tokens.shape, bool)
    else:
      state = self._reset(frozen, state, resets[:, 0])
      resets = resets.at[:, 0].set(False)
    reach = memory_lib.visible_distance(
      state.length,
      resets,
      mem_len=self.mem_len,
      same_length=self.same_length,
      window=config.same_length_window,
    )
    hidden = self._bound(frozen).embedding(tokens)
    layers = []
    for index, layer in enumerate(frozen.layers):
      hidden, cache = _layer(
        config,
        layer,
        _biases(frozen.params, layer, config),
        hidden,
        state.layers[index],
        position_keys=frozen.position_keys[index],
        reach=reach,
        slot=state.slot,
      )
      layers.append(cache)
    length = memory_lib.next_length(state.length, resets, mem_len=self.mem_len)
    slot = (state.slot + tokens.shape[1]) % self.num_slots
    return hidden, State(tuple(layers), length, slot)

  def _reset(self, frozen: Frozen, state: State, rows: jax.Array) -> State:
    """Forgets whole lanes."""
    if self.config.memory_start == "masked":
      return state._replace(length=jnp.where(rows, 0, state.length))
    forgotten = rows[:, None, None, None]
    layers = jax.tree.map(
      lambda slots, empty: jnp.where(forgotten, empty, slots),
      state.layers,
      frozen.empty,
    )
    return state._replace(layers=layers)

  def _bound(self, frozen: Frozen) -> transformer_xl.TransformerXL:
    model = transformer_xl.TransformerXL(
      self.config, clamp_len=self.clamp_len, same_length=self.same_length
    )
    return model.bind({"params": frozen.params})

  def head(self, frozen: Frozen) -> adaptive_softmax.Projection:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""
    return self._bound(frozen).head()


class Continued(NamedTuple):
  """A reader of single tokens, and what it goes on from."""

  reader: Reader
  frozen: Frozen
  state: State


def pack(state: State) -> State:
  """Lanes and heads as one axis of the caches, for loops over single tokens.

  An axis of length 1 is reshaped away where keys are multiplied, and XLA then
  copies the rings instead of writing into them. Takes no resets.
  """
  return _reshaped(state, (-1,))


def unpack(state: State) -> State:
  """Undoes `pack`."""
  return _reshaped(state, (state.length.shape[0], -1))


def _reshaped(state: State, leading: tuple[int, ...]) -> State:
  layers = jax.tree.map(
    lambda slots: slots.reshape(*leading, *slots.shape[-2:]), state.layers
  )
  return state._replace(layers=layers)


def _layer(
  config: schema.ModelConfig,
  params: shapes.PyTree,
  biases: tuple[jax.Array, jax.Array],
  hidden: shapes.Hidden,
  cache: LayerCache,
  *,
  position_keys: ring_lib.RingPositionKeys,
  reach: shapes.Reach,
  slot: jax.Array,
) -> tuple[shapes.Hidden, LayerCache]:
  """One `model.Block`, with new keys and values written into the ring."""
  norm = layers_lib.LayerNorm(config)
  attention_norm = {"params": params["attention_norm"]}
  feed_forward_norm = {"params": params["feed_forward_norm"]}
  query, written = _project(params, hidden, config)
  cache = LayerCache(
    *(
      jax.lax.dynamic_update_slice_in_dim(
        old, new.reshape(*old.shape[:-1], -1), slot, axis=-1
      )
      for old, new in zip(cache, written, strict=True)
    )
  )
  values = dispatch.ring_attention(
    query,
    *cache,
    position_keys,
    content_bias=biases[0].astype(config.dtype),
    position_bias=biases[1].astype(config.dtype),
    reach=reach,
    slot=slot,
  )
  values = jnp.swapaxes(values, 1, 2).reshape(*hidden.shape[:2], -1)
  output = params["attention"]["output"].astype(config.dtype)
  inner: Any = hidden + dense.times(values, output)
  feed_forward = {"params": params["feed_forward"]}
  forward = lambda rows: layers_lib.FeedForward(config).apply(  # noqa: E731
    feed_forward, rows, True
  )
  if config.pre_norm:
    result = inner + forward(norm.apply(feed_forward_norm, inner))
  else:
    inner = norm.apply(attention_norm, inner)
    result = norm.apply(feed_forward_norm, inner + forward(inner))
  return result, cache


def _project(params, hidden, config) -> tuple[jax.Array, LayerCache]:
  """Queries [B, H, T, Dh] of states; keys and values, [B, H, Dh, T]."""
  if config.pre_norm:
    norm = layers_lib.LayerNorm(config)
    hidden = norm.apply({"params": params["attention_norm"]}, hidden)
  heads = _heads(hidden, params["attention"]["joined"], config)
  query, key, value = (heads[:, :, index] for index in range(3))
  return query, LayerCache(jnp.swapaxes(key, 2, 3), jnp.swapaxes(value, 2, 3))


def _around(keys: jax.Array) -> ring_lib.RingPositionKeys:
  return ring_lib.RingPositionKeys(keys, jnp.concatenate([keys, keys], axis=2))


def _joined(layer, config) -> shapes.PyTree:
  """A layer with the kernels of queries, keys and values side by side.

  Side by side in each head, where a mesh that splits heads cuts none.
  """
  attention_params = dict(layer["attention"])
  kernels = [attention_params.pop(name) for name in ("query", "key", "value")]
  shape = (config.model_dim, config.num_heads, 1, config.head_dim)
  joined = jnp.concatenate(
    [kernel.reshape(shape) for kernel in kernels], axis=2
  )
  attention_params["joined"] = joined.reshape(config.model_dim, -1)
  return {**layer, "attention": attention_params}


def _heads(rows: jax.Array, kernel: jax.Array, config: Any) -> jax.Array:
  """Projects [B, T, D] to [B, H, n, T, Dh], n kernels at once."""
  projected = dense.times(rows, kernel.astype(config.dtype))
  shape = (*rows.shape[:2], config.num_heads, -1, config.head_dim)
  return jnp.moveaxis(projected.reshape(shape), 1, 3)


def _biases(params, layer, config) -> tuple[jax.Array, jax.Array]:
  owner = layer["attention"] if config.untie_biases else params
  return owner["content_bias"], owner["position_bias"]
