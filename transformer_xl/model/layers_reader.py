"""Reads vectors with fixed parameters: the layers of every reader.

Every layer reads with the streaming form of its mixer, if it has one, and with
the state of training otherwise. The results are those of `layers.Layers`.

    reader = layers_reader.LayersReader(config, mem_len=1600, segment_len=128,
                                        clamp_len=1000, same_length=True)
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=1)
    hidden, state = reader.read(frozen, state, vectors, resets)

Shapes: B lanes, T tokens, N layers, D model width.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import block
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import memory_tokens as memory_tokens_lib
from transformer_xl.model import parameters
from transformer_xl.model import pattern
from transformer_xl.model import ring
from transformer_xl.model import visibility
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib


class Frozen(NamedTuple):
  """Parameters, and arrays that are computed from the parameters alone.

  Attributes:
    outside: parameters that belong to no layer.
    layers: one tree for each layer, since a slice of one tree costs a copy.
  """

  outside: shapes.PyTree
  layers: tuple[shapes.PyTree, ...]


class ReaderState(NamedTuple):
  """Everything that a step needs to know of the tokens before it.

  Attributes:
    layers: what each layer remembers.
    length: tokens of its document that each lane has read.
    position: position of the next token in its segment.
    num_read: tokens that were read in all; it may overflow.
    memory_tokens: those in front of the segment, which are read behind it, too;
      None if the model has none. They count as tokens in all the rest.
  """

  layers: tuple[mixer_lib.LayerState, ...]
  length: jt.Int[shapes.Array, "B"]
  position: jt.Int[shapes.Array, ""]
  num_read: jt.Int[shapes.Array, ""]
  memory_tokens: memory_tokens_lib.Vectors | None = None

  @property
  def num_lanes(self) -> int:
    """The number of lanes, B."""
    return self.length.shape[0]

  def repeat_lane(self, count: int) -> "ReaderState":
    """The state of a single lane, in `count` lanes."""

    def repeated(state: mixer_lib.LayerState) -> mixer_lib.LayerState:
      if hasattr(state, "repeat_lane"):
        return state.repeat_lane(count)
      return jax.tree.map(
        lambda leaf: jnp.repeat(leaf, count, axis=0) if leaf.ndim else leaf,
        state,
      )

    layers = tuple(map(repeated, self.layers))
    length, vectors = jax.tree.map(
      lambda leaf: jnp.repeat(leaf, count, axis=0),
      (self.length, self.memory_tokens),
    )
    return self._replace(layers=layers, length=length, memory_tokens=vectors)

  def partition_specs(self) -> "ReaderState":
    """The state's PartitionSpecs: by lanes, and for rings by heads as well."""

    def specs(state: mixer_lib.LayerState) -> mixer_lib.LayerState:
      if hasattr(state, "partition_specs"):
        return state.partition_specs()
      return jax.tree.map(
        lambda leaf: P(mesh_lib.LANES) if leaf.ndim else P(), state
      )

    layers = tuple(map(specs, self.layers))
    by_lanes = mesh_lib.spec(mesh_lib.LANES)
    whole = mesh_lib.spec()
    return ReaderState(
      layers,
      length=by_lanes,
      position=whole,
      num_read=whole,
      memory_tokens=None if self.memory_tokens is None else by_lanes,
    )


@dataclasses.dataclass(frozen=True)
class LayersReader:
  """Reads vectors with fixed parameters.

  A ring must not wrap around within a step, so read full segments, then at most
  one partial segment, then single tokens (`for_tokens`).

  Encodings that count from the start of a segment continue its count in the
  steps that complete it, and restart after `segment_len` tokens: single tokens
  get the positions that they would have in whole segments. Such a model should
  be read in segments of the length that it was trained with.

  Without memory, a step sees what was read of its segment and nothing before
  it, so single tokens are read as in whole segments, too.

  Attributes:
    config: of the model.
    mem_len: length of the memory in tokens.
    segment_len: tokens of a full segment.
    clamp_len: distances from this one on share one encoding; 0 for no limit.
    same_length: all queries see the same number of keys.
    step_len: the most tokens in a step; 0 for a segment.
    whole_steps: every step has `step_len` tokens. Otherwise mixers that take
      several tokens together keep room for those that wait.
  """

  config: schema.ModelConfig
  mem_len: int
  segment_len: int
  clamp_len: int
  same_length: bool
  step_len: int = 0
  whole_steps: bool = False

  def __post_init__(self) -> None:
    encodings.of(self.config).check_segment_len(self.config, self.segment_len)

  def freeze(self, params: shapes.PyTree) -> Frozen:
    """Computes everything that does not depend on the vectors.

    `params` are those of `Layers`, or of a network.

    Raises:
      UserError: JAX is in its 64-bit mode.
    """
    outside = {name: tree for name, tree in params.items() if name != "layers"}
    # Not compiled, which would copy what is not cast.
    outside = parameters.in_compute_type(outside, self.config)
    biases = self._bound(outside).biases
    num_places = len(params["layers"])
    layers = []
    for index, place in enumerate(pattern.all_layers(self.config)):
      turn, number = divmod(index, num_places)
      stacked = params["layers"][str(number)]
      layers.append(
        _freeze_layer(stacked, turn, biases, reader=self, place=place)
      )
    return Frozen(outside, tuple(layers))

  def start(self, frozen: Frozen, *, batch_size: int) -> ReaderState:
    """The state before the first token."""
    states = []
    for index, place in enumerate(pattern.all_layers(self.config)):
      mem_len = place.mem_len(self.mem_len)
      streaming = place.mixer.streaming
      if streaming is not None:
        state = streaming.start(
          self.config,
          frozen.layers[index][place.name],
          batch_size=batch_size,
          mem_len=mem_len,
          step_len=self._num_slots_of_step,
        )
      else:
        state = self._empty_state(place, batch_size=batch_size)
      states.append(state)
    # Own arrays, since a donated buffer can be given away only once.
    return ReaderState(
      tuple(states),
      length=jnp.zeros((batch_size,), jnp.int32),
      position=jnp.zeros((), jnp.int32),
      num_read=jnp.zeros((), jnp.int32),
      memory_tokens=memory_tokens_lib.empty(self.config, batch_size),
    )

  def for_tokens(
    self, frozen: Frozen, state: ReaderState
  ) -> tuple["LayersReader", Frozen, ReaderState]:
    """Continues with single tokens: a reader, its parameters and its state."""
    layers = []
    states = []
    for index, place in enumerate(pattern.all_layers(self.config)):
      params = dict(frozen.layers[index])
      layer_state = state.layers[index]
      streaming = place.mixer.streaming
      if streaming is not None:
        params[place.name], layer_state = streaming.for_tokens(
          params[place.name], layer_state, mem_len=place.mem_len(self.mem_len)
        )
      layers.append(params)
      states.append(layer_state)
    reader = dataclasses.replace(self, step_len=1)
    frozen = frozen._replace(layers=tuple(layers))
    return reader, frozen, state._replace(layers=tuple(states))

  def read(
    self,
    frozen: Frozen,
    state: ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[shapes.Hidden, ReaderState]:
    """The result of all layers, and the next state; see `read_layers`."""
    outputs, state = self.read_layers(frozen, state, vectors, resets, count)
    return self._bound(frozen.outside).finish(outputs[-1]), state

  def read_layers(
    self,
    frozen: Frozen,
    state: ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[tuple[shapes.Hidden, ...], ReaderState]:
    """The states of all layers, N + 1 with the input, and the next state.

    Args:
      frozen: the parameters, as `freeze` returns them.
      state: the result of `start` or of the last step.
      vectors: of the tokens, as wide as the model.
      resets: True where a token is the first of a document. None saves the work
        of a reset, which may touch every slot.
      count: how many of the first vectors are of tokens; the others are
        padding, so that segments of all lengths share one compiled function. No
        token looks back as far as the slots of padding, which are the next to
        be written.

    Raises:
      UserError: there are more vectors than a step may have, or after a shorter
        step they would be written around a ring of keys (in a compiled function
        that is not known, and results are wrong), or there are `resets` and a
        `count`.
    """
    _check_padding(resets, count)
    if self.config.num_memory_tokens:
      is_whole = vectors.shape[1] == self.segment_len and self.step_len != 1
      if is_whole and count is None:
        self._check_step(state, vectors.shape[1])
        return self._read_whole_segment(frozen, state, vectors, resets)
      state, resets = self._between_segments(frozen, state, resets)
    self._check_step(state, vectors.shape[1])
    return self._read_rows(frozen, state, vectors, resets, count)

  def _read_whole_segment(
    self,
    frozen: Frozen,
    state: ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None,
  ) -> tuple[tuple[shapes.Hidden, ...], ReaderState]:
    """What `read_layers` returns, of a segment and its memory tokens at once.

    As in training, all of it sees the same memory.
    """
    layers = self._bound(frozen.outside)
    size = self.config.num_memory_tokens
    first = layers.first_memory_tokens
    assert first is not None
    assert state.memory_tokens is not None
    rows, row_resets = memory_tokens_lib.around(
      vectors, resets, state.length, state.memory_tokens, first
    )
    outputs, state = self._read_rows(frozen, state, rows, row_resets, None)
    written = layers.finish(outputs[-1][:, -size:])
    of_tokens = tuple(output[:, size:-size] for output in outputs)
    return of_tokens, state._replace(memory_tokens=written)

  def _between_segments(
    self, frozen: Frozen, state: ReaderState, resets: shapes.Resets | None
  ) -> tuple[ReaderState, shapes.Resets | None]:
    """Reads the memory tokens that stand before the next token, if any do.

    Returns:
      The next state, and the resets that are left for the tokens: a document
      that starts with a segment starts with its memory tokens.
    """
    first = self._bound(frozen.outside).first_memory_tokens
    assert first is not None
    starts = None if resets is None else resets[:, 0]

    def write(state: ReaderState) -> ReaderState:
      written, state = self._read_memory_tokens(frozen, state, None)
      return state._replace(memory_tokens=written)

    def read(state: ReaderState) -> ReaderState:
      is_new = state.length == 0
      if starts is not None:
        is_new = is_new | starts
      state = _restarted(state, is_new, first)
      _, state = self._read_memory_tokens(frozen, state, starts)
      return state

    def same(state: ReaderState) -> ReaderState:
      return state

    is_end = state.position == self._end_of_tokens
    state = jax.lax.cond(is_end, write, same, state)
    is_start = state.position == 0
    state = jax.lax.cond(is_start, read, same, state)
    if resets is None:
      return state, None
    resets = jnp.asarray(resets).at[:, 0].set(resets[:, 0] & ~is_start)
    # What is written of a document has nothing of the one before.
    return _restarted(state, jnp.any(resets, axis=1), first), resets

  def _read_memory_tokens(
    self,
    frozen: Frozen,
    state: ReaderState,
    starts: jt.Bool[shapes.Array, "B"] | None,
  ) -> tuple[memory_tokens_lib.Vectors, ReaderState]:
    """What the layers make of the memory tokens, and the next state.

    `starts` are lanes whose document starts with them, None if none does.
    """
    vectors = state.memory_tokens
    assert vectors is not None
    resets = None
    if starts is not None:
      resets = jnp.zeros(vectors.shape[:2], bool).at[:, 0].set(starts)

    def read(
      state: ReaderState,
      rows: tuple[memory_tokens_lib.Vectors, shapes.Resets | None],
    ) -> tuple[ReaderState, shapes.Hidden]:
      outputs, state = self._read_rows(frozen, state, *rows, None)
      return state, outputs[-1]

    if self.step_len != 1:
      state, last = read(state, (vectors, resets))
    else:  # There are no more slots than for one.
      one_by_one = jax.tree.map(
        lambda rows: jnp.swapaxes(rows, 0, 1)[:, :, None], (vectors, resets)
      )
      state, last = jax.lax.scan(read, state, one_by_one)
      last = jnp.swapaxes(last[:, :, 0], 0, 1)
    return self._bound(frozen.outside).finish(last), state

  def _read_rows(
    self,
    frozen: Frozen,
    state: ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None,
    count: jt.Int[shapes.Array, ""] | None,
  ) -> tuple[tuple[shapes.Hidden, ...], ReaderState]:
    """What `read_layers` returns, of vectors that follow those before them."""
    layers = self._bound(frozen.outside)
    shared = layers_lib.share(state.length, resets, vectors.shape[:2])
    shared = shared._replace(
      distances=layers_lib.encode_distances(
        self.config,
        state.layers,
        segment_len=vectors.shape[1],
        clamp_len=self.clamp_len,
      ),
      biases=layers.biases,
      step=mixer_lib.Step(
        num_read=state.num_read,
        first_position=state.position,
        num_tokens=count,
      ),
    )
    outputs = [layers.enter(vectors, first_position=state.position)]
    held = ring.at_one_slot(state.layers)
    states = []
    for index, place in enumerate(pattern.all_layers(self.config)):
      layer_state = held[index]
      layer_shared = shared
      if self._holds_segment(place):
        layer_state = self._emptied_before_segment(place, state, layer_state)
        # What it holds is of the segment alone.
        layer_shared = shared._replace(
          length=jnp.minimum(shared.length, state.position)
        )
      hidden, kept = _read_layer(
        frozen.layers[index],
        outputs[-1],
        layer_state,
        layer_shared,
        reader=self,
        place=place,
        kind=place.mixer,
      )
      outputs.append(hidden)
      states.append(kept.state)

    num_tokens = vectors.shape[1] if count is None else count
    next_state = state._replace(
      layers=tuple(states),
      length=visibility.next_length(
        shared.length, shared.since_reset, num_tokens
      ),
      position=(state.position + num_tokens) % self._num_rows,
      num_read=state.num_read + num_tokens,
    )
    return tuple(outputs), next_state

  def shardings(
    self, mesh: jax.sharding.Mesh, frozen: Frozen, splits: mesh_lib.Splits
  ) -> Frozen:
    """The shardings of what `freeze` returns.

    They are those of training. But arrays of a streaming form stay whole, since
    every step would gather them. `splits` are those of all parameters.
    """
    num_places = len(pattern.places(self.config))
    layers = []
    for index, place in enumerate(pattern.all_layers(self.config)):
      of_layer = layer_splits(splits, index % num_places)
      if place.mixer.streaming is not None:
        of_layer = {
          path: split
          for path, split in of_layer.items()
          if path[0] != place.name
        }
      layers.append(mesh_lib.shardings(mesh, frozen.layers[index], of_layer))
    outside = mesh_lib.shardings(mesh, frozen.outside, splits)
    return Frozen(outside, tuple(layers))

  def _check_step(self, state: ReaderState, num_vectors: int) -> None:
    """Raises a UserError for a step that would be written around a ring.

    A model with memory tokens reads them between two segments, so a step may
    not be a part of both.
    """
    is_in_two = (
      self.config.num_memory_tokens > 0
      and not isinstance(state.position, jax.core.Tracer)
      and int(state.position) + num_vectors > self._end_of_tokens
    )
    if num_vectors > self._step_len:
      raise errors.UserError(
        f"a step has {num_vectors} vectors and this reader takes "
        f"{self._step_len} at most (segment_len, or step_len): read them in "
        "parts."
      )
    if is_in_two or ring.wraps(state.layers, num_vectors):
      raise errors.UserError(
        f"a step of {num_vectors} vectors does not fit behind those before it: "
        "read whole segments, then at most one shorter step, then single "
        "vectors (for_tokens)."
      )

  def _holds_segment(self, place: pattern.Place) -> bool:
    """Whether a layer without memory gets one that is as long as the segment.

    Its tokens see those before them in the segment, which steps that are parts
    of it have to remember. Streaming forms do so by themselves.
    """
    is_stream = place.mixer.streaming is not None
    return self.mem_len == 0 and self._reads_parts and not is_stream

  def _emptied_before_segment(
    self,
    place: pattern.Place,
    state: ReaderState,
    layer_state: mixer_lib.LayerState,
  ) -> mixer_lib.LayerState:
    """The state of a layer, which forgets where a segment begins."""
    empty = self._empty_state(place, batch_size=state.num_lanes)
    return jax.tree.map(
      lambda fresh, old: jnp.where(state.position == 0, fresh, old),
      empty,
      layer_state,
    )

  def _empty_state(
    self, place: pattern.Place, *, batch_size: int
  ) -> mixer_lib.LayerState:
    """The state of a layer without a streaming form before the first token."""
    mem_len = place.mem_len(self.mem_len)
    if self._holds_segment(place):  # All of it: a limit is for what is before.
      mem_len = self._num_rows
    return place.mixer.empty_state(
      self.config,
      batch_size=batch_size,
      mem_len=mem_len,
      step_len=1 if self._reads_parts else self._step_len,
    )

  def settings_of(self, place: pattern.Place) -> mixer_lib.Settings:
    """How a layer reads, with the length of its own memory."""
    return mixer_lib.Settings(
      clamp_len=self.clamp_len,
      same_length=self.same_length,
      mem_len=place.mem_len(self.mem_len),
    )

  @property
  def _step_len(self) -> int:
    if self.mem_len == 0:  # A step sees the segment that it completes.
      return self.segment_len
    return self.step_len or self.segment_len

  @property
  def _num_slots_of_step(self) -> int:
    """How many slots a ring has room for at a time."""
    if self._step_len == self.segment_len:
      return self._num_rows
    return self._step_len

  @property
  def _num_rows(self) -> int:
    """How many vectors the layers read of a segment."""
    return memory_tokens_lib.num_rows(self.config, self.segment_len)

  @property
  def _end_of_tokens(self) -> int:
    """Position behind the last token of a segment."""
    return self._num_rows - self.config.num_memory_tokens

  @property
  def _reads_parts(self) -> bool:
    """Whether a segment is read in steps that are parts of it."""
    return not self.whole_steps and self._num_rows > 1

  def _bound(self, outside: shapes.PyTree) -> layers_lib.Layers:
    model = layers_lib.Layers(self.config)
    return model.bind({"params": outside})


def layer_splits(splits: mesh_lib.Splits, number: int) -> mesh_lib.Splits:
  """How a mesh splits one layer's parameters, which are not stacked.

  `splits` are those of all parameters, and `number` is that of the layer's
  place in the pattern.
  """
  return {
    path[2:]: split._replace(num_stacked=0)
    for path, split in splits.items()
    if path[:2] == ("layers", str(number))
  }


def _restarted(
  state: ReaderState,
  is_new: jt.Bool[shapes.Array, "B"],
  first: jt.Float[shapes.Array, "S D"],
) -> ReaderState:
  """The state with the first memory tokens in lanes whose document is new."""
  assert state.memory_tokens is not None
  held = memory_tokens_lib.where_new(is_new, first, state.memory_tokens)
  return state._replace(memory_tokens=held)


def _check_padding(
  resets: shapes.Resets | None, count: jt.Int[shapes.Array, ""] | None
) -> None:
  """Raises a UserError for resets beside padding, which would count as text."""
  if resets is not None and count is not None:
    raise errors.UserError(
      "a step has resets and padding (count), of which only one may be: read "
      "the segment without padding."
    )


# As a function of its own it is traced once for all layers that are alike. XLA
# puts its operations in the place of each call. `kind` follows from `place`; as
# an argument it makes a new trace for a class that a notebook defines again.
@functools.partial(jax.jit, static_argnames=("reader", "place", "kind"))
def _read_layer(
  params: shapes.PyTree,
  hidden: shapes.Hidden,
  state: mixer_lib.LayerState,
  shared: mixer_lib.Shared,
  *,
  reader: LayersReader,
  place: pattern.Place,
  kind: type[mixer_lib.Mixer],
) -> tuple[shapes.Hidden, mixer_lib.Kept]:
  """The result of one layer, and what it keeps."""
  del kind
  read = block.Layer(
    reader.config, reader.settings_of(place), place, streams=True
  )
  return read.bind({"params": params})(hidden, state, shared)


# Called outside of a program, it is compiled once for all layers that are
# alike; a program of all layers takes many times as long to compile.
@functools.partial(jax.jit, static_argnames=("reader", "place"))
def _freeze_layer(
  stacked: shapes.PyTree,
  turn: int | jt.Int[shapes.Array, ""],
  biases: shapes.BiasPair | None,
  *,
  reader: LayersReader,
  place: pattern.Place,
) -> shapes.PyTree:
  """Computes everything of one layer that does not depend on the text.

  Args:
    stacked: the parameters of all layers in its place, each [turns, ...].
    turn: the layer's own index there.
    biases: u and v, if all layers share them.
    reader: reads with the layer.
    place: its place in the pattern.
  """
  own = jax.tree.map(
    lambda leaf: jax.lax.dynamic_index_in_dim(leaf, turn, keepdims=False),
    stacked,
  )
  own = parameters.in_compute_type(own, reader.config)
  streaming = place.mixer.streaming
  if streaming is None:
    return own
  return streaming.prepare(
    reader.config,
    reader.settings_of(place),
    own,
    name=place.name,
    biases=biases,
    step_len=reader._num_slots_of_step,
  )
