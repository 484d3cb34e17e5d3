"""The network: adaptive input, layers, adaptive softmax, in Linen.

    state = network.empty_state(config, batch_size=8, mem_len=128, step_len=64)
    model = network.Network(config, settings)
    hidden, state = model.apply({"params": params}, tokens, state, resets)

What it remembers goes in as an argument and comes out as a result; there is no
other state. The lengths of memory and segment and the clamp are not parameter
shapes, so one set of parameters serves any of them.

Read next: `block.py` (a layer), `mixers/attention.py` (the mixer of
Transformer-XL) and `attention.py` (its mathematics).

Shapes: N layers, P places in the pattern of layers, B lanes, T tokens, U
targets, D model width, V vocabulary.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import block
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import feed_forward
from transformer_xl.model import norm
from transformer_xl.model import visibility
from transformer_xl.model.encodings import table as encodings
from transformer_xl.model.mixers import mixer as mixer_lib
from transformer_xl.model.mixers import table


class State(NamedTuple):
  """Everything that a segment needs to know of the segments before it.

  Attributes:
    layers: for each place of the pattern, the states of its layers, with the
      turns of the pattern in front, [N / P, B, ...]. An array without lanes is
      [N / P].
    length: tokens of its document that each lane has read.
  """

  layers: tuple[mixer_lib.LayerState, ...]
  length: jt.Int[shapes.Array, "B"]

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
    length: shapes.PyTree = P(mesh_lib.LANES)
    return State(layers, length)


class AuxiliaryLosses(NamedTuple):
  """Per-token losses that training may add to the loss of the prediction.

  Attributes:
    activation: mean squared activation of the last layer (AR).
    temporal: mean squared change from the token before (TAR), 0 where a
      document starts. Merity et al. 2017, section 4.6.
    mixers: sum of the losses that mixers train their own parameters with; None
      if there are none.
  """

  activation: shapes.Losses
  temporal: shapes.Losses
  mixers: shapes.Losses | None


class Network(nn.Module):
  """A language model: a function of tokens and of what it remembers.

  Attributes:
    config: of the model, `config.model` of an experiment.
    settings: how the network reads, which can differ from run to run.
  """

  config: schema.ModelConfig
  settings: mixer_lib.Settings = mixer_lib.Settings()

  def setup(self) -> None:
    """Names the submodules and the parameters that layers share."""
    config = self.config
    self.embedding = adaptive_embedding.AdaptiveEmbedding(config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(config)
    self.biases = encodings.of(config).shared_biases(self)
    self.layers = block.scanned(config, self.settings)
    if config.final_norm:
      self.final_norm = norm.Norm(config)
    # Drops the vectors of whole words; all lanes share the dropped words.
    self.word_dropout = dropout_lib.Dropout(config.embedding_dropout_rate)
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
    inputs: shapes.Tokens,
    state: State,
    resets: shapes.Resets | None = None,
    *,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> tuple[shapes.Hidden, State]:
    """Reads a segment.

    Args:
      inputs: ids of the tokens.
      state: what is remembered of earlier segments, at first `empty_state`.
      resets: True where a token is the first of a document: from there on
        nothing before it is visible, here and in later segments.
      dropout_lanes: numbers of these lanes in the batch, of which they may be a
        part. What a lane drops follows from its number and from a "dropout"
        key. None is for no dropout.

    Returns:
      The states of the last layer, and what the next segment starts from.
    """
    hidden, state, _ = self._read(inputs, state, resets, dropout_lanes)
    return self.output_dropout(hidden, dropout_lanes=dropout_lanes), state

  def nll(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    state: State,
    resets: shapes.Resets | None = None,
    *,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> tuple[shapes.Losses, State]:
    """Negative log-probability of each target, in nats and token order.

    Args:
      inputs: ids of the tokens.
      targets: ids that the last U inputs predict.
      state: what is remembered of earlier segments, at first `empty_state`.
      resets: True where a token is the first of a document.
      dropout_lanes: numbers of these lanes in the batch; None for no dropout.

    Returns:
      The losses, and what the next segment starts from.
    """
    hidden, state = self(inputs, state, resets, dropout_lanes=dropout_lanes)
    hidden = hidden[:, -targets.shape[1] :]
    return adaptive_softmax.nll(hidden, targets, self.head()), state

  def training_losses(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    state: State,
    resets: shapes.Resets,
    *,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Losses, AuxiliaryLosses, State]:
    """The losses of the targets, and the losses that training may add to them.

    The arguments mean the same as in `nll`. The penalties on activations are
    computed from states before dropout.
    """
    hidden, state, kept = self._read(inputs, state, resets, dropout_lanes)
    output = self.output_dropout(hidden, dropout_lanes=dropout_lanes)
    num_targets = targets.shape[1]
    hidden = hidden[:, -num_targets:]
    output = output[:, -num_targets:]
    resets = resets[:, -num_targets:]

    change = _mean_square(hidden[:, 1:] - hidden[:, :-1])
    change = jnp.where(resets[:, 1:], 0.0, change)
    of_mixers = None
    for of_layers in kept:
      if of_layers.loss is not None:
        loss = jnp.sum(of_layers.loss, axis=0)
        of_mixers = loss if of_mixers is None else of_mixers + loss
    auxiliary = AuxiliaryLosses(
      activation=_mean_square(hidden),
      temporal=jnp.pad(change, ((0, 0), (1, 0))),
      mixers=of_mixers,
    )
    return adaptive_softmax.nll(output, targets, self.head()), auxiliary, state

  def log_probs(
    self,
    inputs: shapes.Tokens,
    state: State,
    resets: shapes.Resets | None = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], State]:
    """Log-probabilities of every next token."""
    hidden, state = self(inputs, state, resets)
    return adaptive_softmax.log_probs(hidden, self.head()), state

  def inspect(
    self,
    inputs: shapes.Tokens,
    state: State,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Hidden, State, tuple[mixer_lib.Inspected | None, ...]]:
    """Reads a segment, and returns what attention is computed from as well.

    The last result has an entry for each place of the pattern, with the turns
    in front. An entry is None where the mixer does not attend, or where the
    settings do not ask for it (`inspects`).
    """
    hidden, state, kept = self._read(inputs, state, resets, None)
    return hidden, state, tuple(of_layers.inspected for of_layers in kept)

  def embed(
    self,
    inputs: shapes.Tokens,
    *,
    first_position: jt.Int[shapes.Array, ""] | None = None,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> shapes.Hidden:
    """The input of the first layer.

    `first_position` is that of the first token in its segment, None for 0. It
    matters only to encodings that count from the start of a segment.
    """
    config = self.config
    hidden = self.embedding(inputs)
    if config.embedding_dropout_rate and dropout_lanes is not None:
      words = jnp.ones((config.vocab_size, 1), hidden.dtype)
      words = self.word_dropout(words, dropout_lanes=dropout_lanes)
      hidden = hidden * words[inputs]
    positions = encodings.of(config).embedding_positions(
      config, first_position, inputs.shape[1]
    )
    if positions is not None:
      hidden = hidden + positions[None]
    return self.input_dropout(hidden, dropout_lanes=dropout_lanes)

  def finish(self, hidden: shapes.Hidden) -> shapes.Hidden:
    """The states that the softmax reads, from those of the last layer."""
    return self.final_norm(hidden) if self.config.final_norm else hidden

  def head(self) -> adaptive_softmax.Projection:
    """The weights of the softmax."""
    weights = self.softmax(self.embedding.tables, self.embedding.projections)
    temperature = adaptive_softmax.Temperature(self.settings.temperature)
    return weights._replace(temperature=temperature)

  def _read(
    self,
    inputs: shapes.Tokens,
    state: State,
    resets: shapes.Resets | None,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Hidden, State, tuple[mixer_lib.Kept, ...]]:
    """Reads a segment up to the last dropout; also returns what mixers keep."""
    config = self.config
    shared = share(state.length, resets, inputs.shape)

    distances = encode_distances(
      config,
      state.layers,
      segment_len=inputs.shape[1],
      clamp_len=self.settings.clamp_len,
    )
    if distances is not None:
      distances = self.position_dropout(distances, dropout_lanes=dropout_lanes)
    shared = shared._replace(
      distances=distances, biases=self.biases, dropout_lanes=dropout_lanes
    )

    hidden = self.embed(inputs, dropout_lanes=dropout_lanes)
    hidden, kept = self.layers(hidden, state.layers, shared)
    hidden = self.finish(hidden)
    length = visibility.next_length(
      shared.length, shared.since_reset, inputs.shape[1]
    )
    layers = tuple(of_layers.state for of_layers in kept)
    return hidden, State(layers, length), kept


def share(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets | None,
  shape: tuple[int, ...],
) -> mixer_lib.Shared:
  """What all layers need to know of a segment.

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
  places = table.pattern(config)
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
  )


def init_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """Draws all parameters in float32 from one random key, a scalar."""
  model = Network(config)
  tokens = jnp.zeros((1, 1), jnp.int32)
  state = empty_state(config, batch_size=1, mem_len=0, step_len=1)
  return model.init(key, tokens, tokens, state, method="nll")["params"]


@functools.cache  # Tracing the model takes long beside drawing a token.
def abstract_params(config: schema.ModelConfig) -> shapes.PyTree:
  """Shapes and types of all parameters; uses no device."""
  return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def num_parameters(params: shapes.PyTree) -> int:
  """The number of trained parameters; shared ones count once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def forward_flops_per_token(
  config: schema.ModelConfig,
  *,
  segment_len: int,
  mem_len: int,
  context_len: int = 0,
  same_length: bool = False,
  step_len: int = 0,
) -> float:
  """Useful operations, two for each multiply-add, of one token's prediction.

  Counted are the mixers and feed-forward parts of all layers, and for words of
  the shortlist the softmax and the projections of its input and output. Not
  counted are tail clusters, which most tokens do not need. `step_len` tokens
  are read at a time, 0 for whole segments.
  """
  reading = mixer_lib.Reading(
    segment_len=segment_len,
    mem_len=mem_len,
    context_len=context_len,
    same_length=same_length,
    step_len=step_len,
  )
  mixers = sum(
    layer.mixer.flops(config, reading._replace(mem_len=layer.mem_len(mem_len)))
    for layer in table.all_layers(config)
  )
  all_feed_forward = config.num_layers * feed_forward.flops(config)
  shortlist, *tails = adaptive_embedding.clusters(config)
  head = 2 * shortlist.width * (shortlist.stop + len(tails))
  if adaptive_embedding.has_projection(config, shortlist.width):
    head += 2 * 2 * shortlist.width * config.model_dim
  return float(mixers + all_feed_forward + head)


def _mean_square(states: jax.Array) -> jax.Array:
  """Mean squares over the channels, [B, T] of [B, T, D], in float32."""
  return jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)
