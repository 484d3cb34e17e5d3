"""The model with fixed parameters: cached keys and values.

While parameters do not change, neither the keys and values of memory nor the
keys of distances have to be projected again for every segment. `step` gives
the same results as the model with hidden states as memory, for every encoding.
Its memory is a ring of R slots into which new tokens are written, so nothing
moves:

    reader = kv_cache.Reader(config.model, mem_len=1600, segment_len=128,
                             clamp_len=1000, same_length=True)
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=1)
    log_probs, state = reader.step(frozen, state, tokens, resets)

Shapes: B lanes, T tokens, N layers, H heads, Dh head width, R slots. Lanes and
heads of a ring are one axis: with a single lane of its own axis, XLA would copy
the rings in a loop over tokens instead of writing into them.
"""

import dataclasses
import functools
import math
import operator
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import compressed_ring
from transformer_xl.model import compression
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import parameters
from transformer_xl.model import ring_source
from transformer_xl.model import ring_state
from transformer_xl.model import transformer_xl
from transformer_xl.model import visibility
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import table


class Frozen(NamedTuple):
  """Parameters, and values that depend on them alone."""

  params: shapes.PyTree  # Those outside the layers.
  layers: tuple[shapes.PyTree, ...]  # One tree a layer: a slice costs a copy.
  distances: tuple[encoding.DistanceTerms | None, ...]
  # Keys and values [H, Dh, 1] of an empty slot, if attended.
  empty: tuple[ring_source.LayerCache, ...]
  compression: tuple[compression.Weights | None, ...]


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads tokens with fixed parameters.

  A step must not wrap around the ring, so read full segments, then at most one
  partial segment, then single tokens.

  Encodings that count from the start of a segment continue its count in the
  steps that complete it, and restart after `segment_len` tokens: single tokens
  get the positions that they would have in whole segments. Such a model should
  be read in segments of the length that it was trained with.

  Without memory, M = 0, a step sees what was read of its segment, so single
  tokens are read as in whole segments, too.
  """

  config: schema.ModelConfig
  mem_len: int  # M.
  segment_len: int  # Tokens of a full segment.
  clamp_len: int  # Larger distances share its encoding; 0 for no limit.
  same_length: bool  # All queries see the same number of keys.
  max_step_len: int = 0  # The most tokens in a step; 0 for a segment.
  temperature: float = 1.0  # Divides the logits.
  compressed_len: int = 0  # C, slots of compressed states.

  def __post_init__(self):
    table.of(self.config).check_segment_len(self.config, self.segment_len)

  @property
  def layout(self) -> compressed_ring.Layout | None:
    """Where slots are, if there is a compressed memory."""
    lengths = self.mem_len, self.compressed_len
    layout = compressed_ring.Layout(self.config, *lengths)
    return layout if all(lengths) else None

  @property
  def layer_lens(self) -> tuple[int, ...]:
    """M of each layer."""
    return memory_lib.layer_lens(self.config, self.mem_len)

  @property
  def layer_slots(self) -> list[int]:
    """R of each layer: memory and a step, in whole steps if not compressed."""
    step_len = self.max_step_len or self.segment_len
    if self.mem_len == 0:
      step_len = self.segment_len  # A step sees the segment that it completes.
    if self.layout is not None:
      return [self.layout.num_slots(step_len)] * self.config.num_layers
    return [(math.ceil(m / step_len) + 1) * step_len for m in self.layer_lens]

  @property
  def num_slots(self) -> int | np.ndarray:
    """R, or [N] if layers differ."""
    counts = self.layer_slots
    return counts[0] if len({*counts}) == 1 else np.array(counts, np.int32)

  def for_tokens(
    self, frozen: Frozen, state: ring_state.State
  ) -> tuple["Reader", Frozen, ring_state.State]:
    """Continues with single tokens, in rings of M + 1 slots.

    Every token reads the whole ring, so slots for a full segment would only
    cost time; they stay without memory, and so do those of a compressed memory.
    Returns a reader with its frozen parameters and state.
    """
    if self.layout is not None:
      return self, frozen, state
    reader = dataclasses.replace(self, max_step_len=1)
    counts = reader.layer_slots
    # The next token overwrites the oldest.
    layers = tuple(map(ring_source.newest, state.layers, state.slots, counts))
    distances = tuple(map(ring_source.nearest, frozen.distances, counts))
    start = jnp.zeros(np.shape(reader.num_slots), jnp.int32)
    state = state._replace(layers=layers, slot=start)
    return reader, frozen._replace(distances=distances), state

  def freeze(self, params: shapes.PyTree) -> Frozen:
    """Computes everything that does not depend on the text."""
    config, counts = self.config, self.layer_slots
    params = parameters.in_compute_type(params, config)
    outside = {name: tree for name, tree in params.items() if name != "layers"}
    stacked = params["layers"], self._bound(outside).compression
    each = [
      jax.tree.map(operator.itemgetter(index), stacked)
      for index in range(config.num_layers)
    ]
    layers, compressions = zip(*each, strict=True)
    biases, order = self._bound(outside).biases, table.of(config)
    sources = {
      count: ring_source.EmptySlot(
        biases, order.positions(config, count, clamp_len=self.clamp_len), count
      )
      for count in {*counts}
    }
    zeros = jnp.zeros((1, 1, config.model_dim), config.dtype)
    kept = [
      self._read(layer, zeros, None, sources[count])[1]
      for layer, count in zip(layers, counts, strict=True)
    ]
    distances, empty = zip(*kept, strict=True)
    joined = tuple(ring_source.joined(layer, config) for layer in layers)
    return Frozen(outside, joined, distances, empty, compressions)

  def start(self, frozen: Frozen, *, batch_size: int) -> ring_state.State:
    """The memory before the first token."""
    fill = 0 if self.config.memory_start == "masked" else max(self.layer_lens)
    filled = functools.partial(
      ring_source.filled, self.config, lanes=batch_size
    )
    before = [jnp.arange(-r, 0, dtype=jnp.int32) for r in self.layer_slots]
    layers: Any = tuple(map(filled, frozen.empty, before))
    length = jnp.full((batch_size,), fill, jnp.int32)
    # Own arrays, since a donated buffer can be given away only once.
    slot = jnp.zeros(np.shape(self.num_slots), jnp.int32)
    position, num_read = (jnp.zeros((), jnp.int32) for _ in range(2))
    if self.layout is not None:
      layers, slot = self.layout.start(layers), slot + self.layout.first
    return ring_state.State(layers, length, slot, position, num_read)

  def step(
    self,
    frozen: Frozen,
    state: ring_state.State,
    tokens: shapes.Tokens,
    resets: Any = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], ring_state.State]:
    """Log-probabilities of every next token, and the next state."""
    hidden, state = self.read(frozen, state, tokens, resets)
    return adaptive_softmax.log_probs(hidden, self.head(frozen)), state

  def nll(
    self,
    frozen: Frozen,
    state: ring_state.State,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Losses, ring_state.State]:
    """Negative log-probabilities of the targets, and the next state."""
    hidden, state = self.read(frozen, state, inputs, resets)
    hidden = hidden[:, -targets.shape[1] :]
    return adaptive_softmax.nll(hidden, targets, self.head(frozen)), state

  def read(
    self,
    frozen: Frozen,
    state: ring_state.State,
    tokens: shapes.Tokens,
    resets: Any = None,
  ) -> tuple[shapes.Hidden, ring_state.State]:
    """The last layer's states, and the next state.

    `resets` [B, T] is True where a token is the first of a document. None saves
    the work of a reset, which may touch every slot.
    """
    outputs, state = self.read_layers(frozen, state, tokens, resets)
    return outputs[-1], state

  def read_part(
    self,
    frozen: Frozen,
    state: ring_state.State,
    tokens: shapes.Tokens,
    count: jt.Int[shapes.Array, ""],
  ) -> tuple[shapes.Hidden, ring_state.State]:
    """`read` for the first `count` tokens; the others are padding.

    So segments of all lengths share one compiled function. Padding comes after
    the tokens that count, and its slots are the next to be written: no token
    looks back that far.
    """
    outputs, state = self.read_layers(frozen, state, tokens, count=count)
    return outputs[-1], state

  def read_layers(
    self,
    frozen: Frozen,
    state: ring_state.State,
    tokens: shapes.Tokens,
    resets: Any = None,
    count: int | jax.Array | None = None,
  ) -> tuple[tuple[shapes.Hidden, ...], ring_state.State]:
    """`read`, or `read_part`, with the states of all layers, N + 1.

    First are the embeddings. The count is a scalar.
    """
    count = tokens.shape[1] if count is None else count
    if resets is None:
      resets = jnp.zeros(tokens.shape, bool)
    else:
      state = ring_state.reset(
        state, resets[:, 0], frozen.empty, self.config, mem_len=self.mem_len
      )
      resets = resets.at[:, 0].set(False)
    place = None
    if self.layout is not None:
      place = self.layout.place(state.slot, state.length, count)
    sources = self._sources(state, place, resets)
    model = self._bound(frozen.params)
    outputs = [model.embed(tokens, first_position=state.position)]
    layers = []
    memories = map(
      ring_source.Slots, state.layers, frozen.distances, frozen.compression
    )
    each = zip(frozen.layers, memories, sources, strict=True)
    for layer, memory, source in each:
      hidden, cache = self._read(layer, outputs[-1], memory, source)
      outputs.append(hidden)
      layers.append(cache)
    slot = (state.slot + count) % self.num_slots
    position = (state.position + count) % self.segment_len
    num_read = state.num_read + count
    # Without memory, the segment so far.
    most_visible = max(self.layer_lens) or position
    if place is not None:
      slot = place.next_slot
      most_visible = place.capacity
    length = visibility.next_length(
      state.length, resets, count, mem_len=most_visible
    )
    return tuple(outputs), ring_state.State(
      tuple(layers), length, slot, position, num_read
    )

  def _sources(
    self, state: ring_state.State, place: Any, resets: Any
  ) -> list[Any]:
    """Where keys and values of a step come from, for each layer."""
    length, lens = state.length, self.layer_lens
    if self.layout is not None:
      length, lens = place.visible, (self.layout.first,) * len(lens)
    reaches = {
      m: visibility.visible_distance(
        length if m == max(lens) else jnp.minimum(length, m),
        resets,
        mem_len=m,
        same_length=self.same_length,
        window=self.config.same_length_window,
      )
      for m in {*lens}
    }
    rings = [
      ring_source.Ring(state.position, reaches[m], slot, state.num_read)
      for m, slot in zip(lens, state.slots, strict=True)
    ]
    if self.layout is None:
      return rings
    return [
      compressed_ring.CompressedRing(ring, self.layout, place) for ring in rings
    ]

  def head(self, frozen: Frozen) -> adaptive_softmax.Projection:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""
    return self._bound(frozen.params).head()

  def _read(self, params, hidden, memory, source):
    """One layer's output, and what the source keeps."""
    block: Any = layers_lib.Block(self.config)
    arguments = hidden, memory, source, None
    output, (entered, kept) = block.apply({"params": params}, *arguments)
    if isinstance(source, compressed_ring.CompressedRing):
      kept = source.kept(kept, memory, entered)
    return output, kept

  def _bound(self, params: shapes.PyTree) -> transformer_xl.TransformerXL:
    model = transformer_xl.TransformerXL(
      self.config, self.clamp_len, self.same_length, self.temperature
    )
    return model.bind({"params": params})
