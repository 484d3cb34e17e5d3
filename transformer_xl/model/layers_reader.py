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

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import block
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import memory_tokens
from transformer_xl.model import memory_tokens_reader
from transformer_xl.model import parameters
from transformer_xl.model import pattern
from transformer_xl.model import reader_state
from transformer_xl.model import ring
from transformer_xl.model import visibility
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib


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

  def freeze(self, params: shapes.PyTree) -> reader_state.Frozen:
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
    return reader_state.Frozen(outside, tuple(layers))

  def start(
    self, frozen: reader_state.Frozen, *, batch_size: int
  ) -> reader_state.ReaderState:
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
    return reader_state.ReaderState(
      tuple(states),
      length=jnp.zeros((batch_size,), jnp.int32),
      position=jnp.zeros((), jnp.int32),
      num_read=jnp.zeros((), jnp.int32),
      memory_tokens=memory_tokens.empty(self.config, batch_size),
    )

  def for_tokens(
    self, frozen: reader_state.Frozen, state: reader_state.ReaderState
  ) -> tuple["LayersReader", reader_state.Frozen, reader_state.ReaderState]:
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
    frozen: reader_state.Frozen,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[shapes.Hidden, reader_state.ReaderState]:
    """The result of all layers, and the next state; see `read_layers`."""
    outputs, state = self.read_layers(frozen, state, vectors, resets, count)
    return self._bound(frozen.outside).finish(outputs[-1]), state

  def read_layers(
    self,
    frozen: reader_state.Frozen,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[tuple[shapes.Hidden, ...], reader_state.ReaderState]:
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
        step they would be written around a ring of keys or, with memory tokens,
        are of two segments (in a compiled function that is not known, and
        results are wrong), or there are `resets` and a `count`.
    """
    _check_padding(resets, count)
    num_vectors = vectors.shape[1]
    if num_vectors > self._step_len:
      raise errors.UserError(
        f"a step has {num_vectors} vectors and this reader takes "
        f"{self._step_len} at most (segment_len, or step_len): read them in "
        "parts."
      )
    layers = self._bound(frozen.outside)
    read_rows = functools.partial(self._read_rows, frozen)
    if layers.first_memory_tokens is None:
      return read_rows(state, vectors, resets, count)
    reader = memory_tokens_reader.MemoryTokensReader(
      read_rows,
      layers.finish,
      first=layers.first_memory_tokens,
      segment_len=self.segment_len,
      one_by_one=self.step_len == 1,
    )
    return reader.read(state, vectors, resets, count)

  def _read_rows(
    self,
    frozen: reader_state.Frozen,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[tuple[shapes.Hidden, ...], reader_state.ReaderState]:
    """What `read_layers` returns, of vectors that follow those before them."""
    if ring.wraps(state.layers, vectors.shape[1]):
      raise reader_state.does_not_fit(vectors.shape[1])
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
    self,
    mesh: jax.sharding.Mesh,
    frozen: reader_state.Frozen,
    splits: mesh_lib.Splits,
  ) -> reader_state.Frozen:
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
    return reader_state.Frozen(outside, tuple(layers))

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
    state: reader_state.ReaderState,
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
    return memory_tokens.num_rows(self.config, self.segment_len)

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
