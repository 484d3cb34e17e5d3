"""The network: adaptive input, layers (`layers.py`), adaptive softmax.

    state = network.empty_state(config, batch_size=8, mem_len=128, step_len=64)
    model = network.Network(config, settings)
    hidden, state = model.apply({"params": params}, tokens, state, resets)

What it remembers goes in as an argument and comes out as a result; there is no
other state. The lengths of memory and segment and the clamp are not parameter
shapes, so one set of parameters serves any of them.

Read next: `layers.py`, `block.py` (a layer), `mixers/attention.py` (the mixer
of Transformer-XL) and `attention.py` (its mathematics).

Shapes: B lanes, T tokens, U targets, D model width, V vocabulary.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import auxiliary_predictions
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import feed_forward
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import memory_tokens
from transformer_xl.model import parameters
from transformer_xl.model import pattern
from transformer_xl.model import residual
from transformer_xl.model import scores
from transformer_xl.model.mixers import mixer as mixer_lib

# What a network remembers is what its layers remember.
State = layers_lib.State
empty_state = layers_lib.empty_state


class AuxiliaryLosses(NamedTuple):
  """Per-token losses that training may add to the loss of the prediction.

  Attributes:
    activation: mean squared activation of the last layer (AR).
    temporal: mean squared change from the token before (TAR), 0 where a
      document starts. Merity et al. 2017, section 4.6.
    mixers: sum of the losses that mixers train their own parameters with; None
      if there are none.
    outputs: what training predicts more tokens from, or the same from other
      layers; None if it does not.
  """

  activation: shapes.Losses
  temporal: shapes.Losses
  mixers: shapes.Losses | None
  outputs: auxiliary_predictions.LayerOutputs | None


class Network(nn.Module):
  """A language model: a function of tokens and of what it remembers.

  Attributes:
    config: of the model, `config.model` of an experiment.
    settings: how the network reads, which can differ from run to run.
  """

  config: schema.ModelConfig
  settings: mixer_lib.Settings = mixer_lib.Settings()

  def setup(self) -> None:
    """Names the submodules."""
    config = self.config
    self.embedding = adaptive_embedding.AdaptiveEmbedding(config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(config)
    self.auxiliary = auxiliary_predictions.AuxiliaryPredictions(config)
    # Its parameters are the network's own: `layers` and not `body/layers`.
    self.body = layers_lib.Layers(config, self.settings)
    nn.share_scope(self, self.body)
    # Drops the vectors of whole words; all lanes share the dropped words.
    self.word_dropout = dropout_lib.Dropout(config.embedding_dropout_rate)

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
        nothing before it is visible, here and in later segments. With
        `memory_start="zeros"` it has to be the first of the segment.
      dropout_lanes: numbers of these lanes in the batch, of which they may be a
        part. What a lane drops follows from its number and from a "dropout"
        key. None is for no dropout.

    Returns:
      The states of the last layer, and what the next segment starts from.
    """
    vectors = self.embed(inputs, dropout_lanes=dropout_lanes)
    return self.body(vectors, state, resets, dropout_lanes=dropout_lanes)

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
    visible_len: jt.Int[shapes.Array, ""] | None = None,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Losses, AuxiliaryLosses, State]:
    """The losses of the targets, and the losses that training may add to them.

    The arguments mean the same as in `nll`; attention sees at most
    `visible_len` tokens before the segment, None for all that are remembered.
    The penalties on activations are computed from states before dropout.
    """
    vectors = self.embed(inputs, dropout_lanes=dropout_lanes)
    hidden, state, kept = self.body.read(
      vectors,
      state,
      resets,
      visible_len=visible_len,
      dropout_lanes=dropout_lanes,
    )
    output = self.body.output_dropout(hidden, dropout_lanes=dropout_lanes)
    num_targets = targets.shape[1]
    hidden = hidden[:, -num_targets:]
    output = output[:, -num_targets:]
    resets = resets[:, -num_targets:]

    change = _mean_square(hidden[:, 1:] - hidden[:, :-1])
    change = jnp.where(resets[:, 1:], 0.0, change)
    mixer_loss = None
    for results in kept:
      if results.loss is not None:
        loss = jnp.sum(results.loss, axis=0)[:, -num_targets:]
        mixer_loss = loss if mixer_loss is None else mixer_loss + loss
    auxiliary = AuxiliaryLosses(
      activation=_mean_square(hidden),
      temporal=jnp.pad(change, ((0, 0), (1, 0))),
      mixers=mixer_loss,
      outputs=self._layer_outputs(output, kept, dropout_lanes),
    )
    return adaptive_softmax.nll(output, targets, self.head()), auxiliary, state

  def _layer_outputs(
    self,
    last: shapes.Hidden,
    kept: tuple[mixer_lib.Kept, ...],
    dropout_lanes: shapes.Lanes | None,
  ) -> auxiliary_predictions.LayerOutputs | None:
    """`AuxiliaryLosses.outputs`, given that of the last layer, [B, U, D]."""
    config = self.config
    if not auxiliary_predictions.is_used(config):
      return None
    below = []
    for number in range(config.num_layers - 1):
      turn, place = divmod(number, len(kept))
      outputs = kept[place].output
      if outputs is not None:
        read = self.body.finish(outputs[turn])
        read = self.body.output_dropout(read, dropout_lanes=dropout_lanes)
        below.append(read[:, -last.shape[1] :])
    return auxiliary_predictions.LayerOutputs(
      last, jnp.stack(below) if below else None
    )

  def draw(
    self, inputs: shapes.Tokens, targets: shapes.Targets, state: State
  ) -> None:
    """Uses every parameter, so that `init` draws it."""
    self.nll(inputs, targets, state)
    self.auxiliary(self.head())

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
  ) -> tuple[shapes.Hidden, State, tuple[scores.ScoreFactors | None, ...]]:
    """Reads a segment, and returns what attention is computed from as well.

    The last result has an entry for each place of the pattern, with the turns
    in front. An entry is None where the mixer does not attend, or where the
    settings do not ask for it (`inspects`).
    """
    vectors = self.embed(inputs)
    hidden, state, kept = self.body.read(vectors, state, resets)
    return hidden, state, tuple(results.inspected for results in kept)

  def embed(
    self, inputs: shapes.Tokens, *, dropout_lanes: shapes.Lanes | None = None
  ) -> shapes.Hidden:
    """The vectors of the tokens, which the layers read."""
    config = self.config
    hidden = self.embedding(inputs)
    if config.embedding_dropout_rate and dropout_lanes is not None:
      words = jnp.ones((config.vocab_size, 1), hidden.dtype)
      words = self.word_dropout(words, dropout_lanes=dropout_lanes)
      hidden = hidden * words[inputs]
    return hidden

  def head(self) -> adaptive_softmax.SoftmaxWeights:
    """The weights of the softmax."""
    weights = self.softmax(self.embedding.tables, self.embedding.projections)
    temperature = adaptive_softmax.Temperature(self.settings.temperature)
    return weights._replace(temperature=temperature)


def init_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """Draws all parameters in float32 from one random key, a scalar."""
  return nn.unbox(_boxed_params(config, key))


@functools.cache
def abstract_params(config: schema.ModelConfig) -> shapes.PyTree:
  """Shapes and types of all parameters; uses no device."""
  return nn.unbox(_abstract_boxed_params(config))


@functools.cache
def splits(config: schema.ModelConfig) -> mesh_lib.Splits:
  """How a mesh splits each parameter; uses no device."""
  return parameters.splits_of(_abstract_boxed_params(config))


@functools.cache  # Tracing the model takes long beside drawing a token.
def _abstract_boxed_params(config: schema.ModelConfig) -> shapes.PyTree:
  return jax.eval_shape(lambda: _boxed_params(config, jax.random.key(0)))


def _boxed_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """New parameters, in the boxes that say how a mesh splits them."""
  model = Network(config)
  tokens = jnp.zeros((1, 1), jnp.int32)
  state = empty_state(config, batch_size=1, mem_len=0, step_len=1)
  return model.init(key, tokens, tokens, state, method="draw")["params"]


def without_auxiliary(params: shapes.PyTree) -> shapes.PyTree:
  """The parameters without those of auxiliary predictions.

  Only training makes such predictions.
  """
  return {name: tree for name, tree in params.items() if name != "auxiliary"}


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

  Counted are the mixers, feed-forward parts and gates of all layers, and for
  words of the shortlist the softmax and the projections of its input and
  output. Not counted are tail clusters, which most tokens do not need.
  `step_len` tokens are read at a time, 0 for whole segments. Layers read memory
  tokens as well, whose work the tokens of the segment share.
  """
  num_rows = memory_tokens.num_rows(config, segment_len)
  reading = mixer_lib.Reading(
    segment_len=num_rows,
    mem_len=mem_len,
    context_len=context_len,
    same_length=same_length,
    step_len=step_len,
  )
  mixers = sum(
    layer.mixer.flops(config, reading._replace(mem_len=layer.mem_len(mem_len)))
    for layer in pattern.all_layers(config)
  )
  of_each_layer = feed_forward.flops(config) + residual.flops(config)
  of_layers = mixers + config.num_layers * of_each_layer
  shortlist, *tails = adaptive_embedding.clusters(config)
  head = 2 * shortlist.width * (shortlist.stop + len(tails))
  if adaptive_embedding.has_projection(config, shortlist.width):
    head += 2 * 2 * shortlist.width * config.model_dim
  return float(of_layers * num_rows / segment_len + head)


def _mean_square(states: jax.Array) -> jax.Array:
  """Mean squares over the channels, [B, T] of [B, T, D], in float32."""
  return jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)
