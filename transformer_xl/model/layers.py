"""The layers of a network, without a vocabulary.

    layers = layers.Layers(config)
    state = layers.empty_state(config, batch_size=8, mem_len=128, step_len=64)
    hidden, state = layers.apply({"params": params}, vectors, state, resets)

A function of vectors and of what is remembered: the input of a network that has
no words, such as an agent's observations or a series. A language model is these
layers between an embedding and a softmax (`network.py`).

Shapes: N layers, P places in the pattern of layers, B lanes, T tokens, D model
width.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import precision
from transformer_xl.config import schema
from transformer_xl.model import block
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import memory_tokens as memory_tokens_lib
from transformer_xl.model import norm
from transformer_xl.model import pattern
from transformer_xl.model import visibility
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib


class State(NamedTuple):
  """Everything that a segment needs to know of the segments before it.

  Attributes:
    layers: for each place of the pattern, the states of its layers, with the
      turns of the pattern in front, [N / P, B, ...]. An array without lanes is
      [N / P].
    length: tokens of its document that each lane has read, with the memory
      tokens among them.
    memory_tokens: what the last segment has written for the next; None if the
      model has none.
  """

  layers: tuple[mixer_lib.LayerState, ...]
  length: jt.Int[shapes.Array, "B"]
  memory_tokens: memory_tokens_lib.Vectors | None = None

  def partition_specs(self) -> "State":
    """The state's PartitionSpecs, which split it by lanes.

    Hidden states stay whole over `tensor`. Split by width as well, XLA's
    partitioner of jax 0.10.2 computes other gradients on a mesh of 2 x 2 x 2
    (test_sharding.py).
    """
    by_lanes = P(None, mesh_lib.LANES)
    layers = jax.tree.map(
      lambda leaf: by_lanes if leaf.ndim > 1 else P(), self.layers
    )
    length = mesh_lib.spec(mesh_lib.LANES)
    vectors = None if self.memory_tokens is None else length
    return State(layers, length, vectors)


class Layers(nn.Module):
  """A function of vectors and of what is remembered of those before.

  Vectors are as wide as the model (`config.model_dim`). Of the fields of
  `config`, those of the vocabulary and of the softmax have no effect.

  Attributes:
    config: of the model, `config.model` of an experiment.
    settings: how the layers read, which can differ from run to run.
  """

  config: schema.ModelConfig
  settings: mixer_lib.Settings = mixer_lib.Settings()

  def setup(self) -> None:
    """Names the submodules and the parameters that layers share."""
    precision.require_32_bits()
    config = self.config
    self.biases = encodings.of(config).shared_biases(self)
    self.first_memory_tokens = memory_tokens_lib.first_vectors(self)
    self.layers = block.scanned(config, self.settings)
    if config.final_norm:
      self.final_norm = norm.Norm(config)
    self.input_dropout = dropout_lib.of_states(
      config, config.input_dropout_rate
    )
    # All lanes share one mask; if locked, so do all distances.
    self.position_dropout = dropout_lib.of_states(
      config, config.input_dropout_rate
    )
    self.output_dropout = dropout_lib.of_states(
      config, config.output_dropout_rate
    )

  def __call__(
    self,
    vectors: shapes.Hidden,
    state: State,
    resets: shapes.Resets | None = None,
    *,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> tuple[shapes.Hidden, State]:
    """Reads a segment.

    Args:
      vectors: of the tokens.
      state: what is remembered of earlier segments, at first `empty_state`.
      resets: True where a token is the first of a document, or of an episode:
        from there on nothing before it is visible, here and in later segments.
        With `memory_start="zeros"` it has to be the first of the segment.
      dropout_lanes: numbers of these lanes in the batch, of which they may be a
        part. What a lane drops follows from its number and from a "dropout"
        key. None is for no dropout.

    Returns:
      The states of the last layer, and what the next segment starts from.
    """
    hidden, state, _ = self.read(
      vectors, state, resets, dropout_lanes=dropout_lanes
    )
    return self.output_dropout(hidden, dropout_lanes=dropout_lanes), state

  def read(
    self,
    vectors: shapes.Hidden,
    state: State,
    resets: shapes.Resets | None = None,
    *,
    visible_len: jt.Int[shapes.Array, ""] | None = None,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> tuple[shapes.Hidden, State, tuple[mixer_lib.Kept, ...]]:
    """Reads a segment up to the last dropout; also returns what mixers keep.

    Attention sees at most `visible_len` tokens before the segment; None is for
    all that are remembered. The next state remembers the same in both cases.
    """
    config = self.config
    first = self.first_memory_tokens
    if first is not None:
      assert state.memory_tokens is not None
      held = state.memory_tokens
      if not self.settings.trains_memory:
        held = jax.lax.stop_gradient(held)
      vectors, resets = memory_tokens_lib.around(
        vectors, resets, state.length, held, first
      )
    segment_len = vectors.shape[1]
    shared = share(state.length, resets, vectors.shape[:2])
    length = visibility.next_length(
      shared.length, shared.since_reset, segment_len
    )
    if visible_len is not None:
      visible = jnp.minimum(shared.length, visible_len)
      shared = shared._replace(length=visible)

    distances = encode_distances(
      config,
      state.layers,
      segment_len=segment_len,
      clamp_len=self.settings.clamp_len,
    )
    if distances is not None:
      distances = self.position_dropout(distances, dropout_lanes=dropout_lanes)
    shared = shared._replace(
      distances=distances, biases=self.biases, dropout_lanes=dropout_lanes
    )

    hidden = self.enter(vectors, dropout_lanes=dropout_lanes)
    hidden, kept = self.layers(hidden, state.layers, shared)
    hidden = self.finish(hidden)
    layers = tuple(of_layers.state for of_layers in kept)
    written = None
    if first is not None:
      size = len(first)
      written = hidden[:, -size:]
      hidden = hidden[:, size:-size]
      kept = tuple(of_layers.of_rows(size, -size) for of_layers in kept)
    return hidden, State(layers, length, written), kept

  def enter(
    self,
    vectors: shapes.Hidden,
    *,
    first_position: jt.Int[shapes.Array, ""] | None = None,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> shapes.Hidden:
    """The input of the first layer.

    `first_position` is that of the first token in its segment, None for 0. It
    matters only to encodings that count from the start of a segment.
    """
    positions = encodings.of(self.config).embedding_positions(
      self.config, first_position, vectors.shape[1]
    )
    if positions is not None:
      vectors = vectors + positions[None]
    return self.input_dropout(vectors, dropout_lanes=dropout_lanes)

  def finish(self, hidden: shapes.Hidden) -> shapes.Hidden:
    """The result of all layers, from the output of the last one."""
    return self.final_norm(hidden) if self.config.final_norm else hidden


def share(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets | None,
  shape: tuple[int, ...],
) -> mixer_lib.Shared:
  """The facts of a segment that all layers share.

  `length` counts the tokens of its document that each lane has read before the
  segment, and `shape` is the segment's, [B, T].

  A reset at the first token concerns the whole lane and what it remembers;
  later ones split the segment.
  """
  if resets is None:
    resets = jnp.zeros(shape, bool)
    forgets = None
  else:
    forgets = resets[:, 0]
    length = jnp.where(forgets, 0, length)
  inside = jnp.asarray(resets).at[:, 0].set(False)
  return mixer_lib.Shared(
    resets=resets,
    forgets=forgets,
    length=length,
    since_reset=visibility.since_reset(inside),
  )


def encode_distances(
  config: schema.ModelConfig,
  layers: tuple[mixer_lib.LayerState, ...],
  *,
  segment_len: int,
  clamp_len: int,
) -> shapes.Positions | None:
  """Encodes the distances that layers project, for the one that sees most.

  The result is None if no layer attends to positions in its state, or the
  encoding has no such vectors. A ring has them in its parameters.
  """
  lengths = [
    layer.num_positions for layer in layers if hasattr(layer, "num_positions")
  ]
  if not lengths:
    return None
  return encodings.of(config).positions(
    config, max(lengths) + segment_len, clamp_len=clamp_len
  )


def empty_state(
  config: schema.ModelConfig,
  *,
  batch_size: int,
  mem_len: int,
  step_len: int,
) -> State:
  """The state of a network before the first token.

  Args:
    config: of the model.
    batch_size: B.
    mem_len: length of the memory in tokens; 0 remembers nothing from segment to
      segment.
    step_len: tokens of a segment.
  """
  places = pattern.places(config)
  num_turns = config.num_layers // len(places)

  def stacked(leaf: jax.Array) -> jax.Array:
    return jnp.broadcast_to(leaf[None], (num_turns, *leaf.shape))

  layers = [
    layer.mixer.empty_state(
      config,
      batch_size=batch_size,
      mem_len=layer.mem_len(mem_len),
      step_len=step_len,
    )
    for layer in places
  ]
  return State(
    tuple(jax.tree.map(stacked, layers)),
    jnp.zeros((batch_size,), jnp.int32),
    memory_tokens_lib.empty(config, batch_size),
  )


def init_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """Draws the layers' parameters in float32 from one random key, a scalar."""
  vectors = jnp.zeros((1, 1, config.model_dim), config.dtype)
  state = empty_state(config, batch_size=1, mem_len=0, step_len=1)
  drawn = Layers(config).init(key, vectors, state)["params"]
  return nn.unbox(drawn)  # Without the boxes that say how a mesh splits them.
