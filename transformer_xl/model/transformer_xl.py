"""Transformer-XL in Linen: modules name parameters and call pure functions.

    outputs, memory = model.apply({"params": params}, inputs, memory, resets)

Memory goes in as an argument and comes out as a result. Its length, the
segment's and the clamp are not parameter shapes, so one set of parameters
serves any of them.
"""

import functools
from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import compression
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import layers
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import sources
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import table
from transformer_xl.model.kernels import device

REMAT_POLICIES = {
  "full": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "attention": jax.checkpoint_policies.save_only_these_names(
    "attention_output", "feed_forward_hidden"
  ),
}


class Activity(NamedTuple):
  """Mean squares that training may add to the loss of each token.

  Of the states that enter the softmax, activation regularisation penalises both
  (Merity et al. 2017, section 4.6).
  """

  size: shapes.Losses
  change: shapes.Losses  # From the token before; 0 where a text begins.
  # What attention loses by a convolution: `compression.reconstruction`.
  reconstruction: shapes.Losses | None


class TransformerXL(nn.Module):
  """The language model."""

  config: schema.ModelConfig
  clamp_len: int  # Larger distances share its encoding; 0 for no limit.
  same_length: bool  # All queries see the same number of keys.
  temperature: float = 1.0  # Divides the logits.
  gradient_through_memory: bool = False  # Into the segments before.

  def setup(self) -> None:
    """Names the submodules and shared parameters."""
    config = self.config
    self.embedding = adaptive_embedding.AdaptiveEmbedding(config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(config)
    self.biases = table.of(config).shared_biases(self)
    self.compression = compression.weights(self)
    self.layers = _scanned_blocks(config)(config)
    dropout = functools.partial(layers.state_dropout, config)
    self.input_dropout = dropout(config.input_dropout_rate)
    self.output_dropout = dropout(config.output_dropout_rate)
    # All lanes share one mask; if locked, so do all distances.
    self.position_dropout = dropout_lib.Dropout(
      config.position_dropout_rate, config.locked_dropout
    )
    self.word_dropout = dropout_lib.Dropout(config.embedding_dropout_rate)

  def __call__(
    self,
    inputs: shapes.Tokens,
    memory: memory_lib.Memory,
    resets: shapes.Resets | None = None,
    *,
    deterministic: bool = True,
  ) -> tuple[shapes.Hidden, memory_lib.Memory]:
    """The last layer's states, and the memory for the next segment.

    The first memory is `memory.empty`. `resets` is True where a token is the
    first of a document: from there on nothing before it is visible, here and in
    later segments. If not `deterministic`, a "dropout" key is needed.
    """
    hidden, memory, *_ = self._read(inputs, memory, resets, deterministic)
    return self.output_dropout(hidden, deterministic=deterministic), memory

  def inspect(
    self, inputs: shapes.Tokens, memory: memory_lib.Memory, resets: Any = None
  ) -> tuple[shapes.Hidden, memory_lib.Memory, encoding.ScoreFactors]:
    """`__call__`, with what attention scores are computed from.

    The factors of all layers have N as their first axis.
    """
    reading = self._read(inputs, memory, resets, True, sources.InspectedStates)
    return reading[:3]

  def embed(
    self,
    inputs: shapes.Tokens,
    *,
    first_position: int | jax.Array = 0,
    deterministic: bool = True,
  ) -> shapes.Hidden:
    """The input of the first layer.

    `first_position`, a scalar, is that of the first token in its segment; it
    matters only to encodings that count from the start of a segment.
    """
    config = self.config
    hidden = self.embedding(inputs)
    if config.embedding_dropout_rate and not deterministic:
      words = jnp.ones((config.vocab_size, 1), hidden.dtype)
      words = self.word_dropout(words, deterministic=False)
      hidden = hidden * words[inputs]
    positions = table.of(config).embedding_positions(
      config, first_position, inputs.shape[1]
    )
    if positions is not None:
      hidden = hidden + positions[None]
    return self.input_dropout(hidden, deterministic=deterministic)

  def _read(self, inputs, memory, resets, deterministic, source: Any = None):
    """`__call__` without the last dropout.

    Besides it returns what the source keeps, and the inputs of the layers.
    """
    config, passes = self.config, self.gradient_through_memory
    if source is None:
      source = sources.TrainedStates if passes else sources.HiddenStates
    if resets is None:
      resets = jnp.zeros(inputs.shape, bool)
    # A reset at the first token concerns the whole lane and its memory; later
    # ones split the segment and are masks.
    memory = memory_lib.reset(memory, resets[:, 0], start=config.memory_start)
    resets = resets.at[:, 0].set(False)
    window = config.same_length_window
    reach = memory_lib.reach(
      memory,
      resets,
      rate=config.compression_rate,
      same_length=self.same_length,
      window=window,
    )
    remembered = memory.states
    context_len = remembered.shape[2] + inputs.shape[1]
    positions = table.of(config).positions(
      config, context_len, clamp_len=self.clamp_len
    )
    if positions is not None:
      positions = self.position_dropout(positions, deterministic=deterministic)
    hidden, (layer_inputs, kept) = self.layers(
      self.embed(inputs, deterministic=deterministic),
      remembered,
      source(positions, self.biases, reach),
      deterministic,
    )
    memory = memory_lib.append(
      memory,
      layer_inputs,
      resets,
      with_gradient=passes,
      compress=self._compress,
    )
    return hidden, memory, kept, layer_inputs

  def _compress(self, states):
    """[N, B, T, D] to [N, B, T / c, D]."""
    each = functools.partial(compression.compress, config=self.config)
    return jax.vmap(each)(states, self.compression)

  def _reconstruction(self, layer_inputs, before, after):
    """`compression.reconstruction` for the memory around a segment."""
    if self.compression is None or before.compressed is None:
      return None
    leaving = memory_lib.leaving(before, layer_inputs)
    leaving = jax.lax.stop_gradient(leaving)
    num_slots = memory_lib.whole_slots(
      after.length, before.mem_len, rate=self.config.compression_rate
    )
    return compression.reconstruction(
      self.layers.variables["params"],
      layer_inputs,
      leaving,
      self._compress(leaving),
      num_slots,
      config=self.config,
    )

  def nll(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    *rest: Any,
    **more: Any,
  ) -> tuple[shapes.Losses, memory_lib.Memory]:
    """Negative log-probability of each target, in nats and token order.

    The U targets are those of the last inputs. The other arguments, and the
    memory that it returns, are those of `__call__`.
    """
    hidden, memory = self(inputs, *rest, **more)
    hidden = hidden[:, -targets.shape[1] :]
    return adaptive_softmax.nll(hidden, targets, self.head()), memory

  def nll_and_activity(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    memory: memory_lib.Memory,
    resets: shapes.Resets,
    *,
    before_dropout: bool,
    deterministic: bool = False,
  ) -> tuple[shapes.Losses, Activity, memory_lib.Memory]:
    """`nll`, and what training may add to it.

    With `before_dropout`, the size of the states is that before dropout, too.
    """
    before = memory
    hidden, memory, _, layer_inputs = self._read(
      inputs, memory, resets, deterministic
    )
    reconstruction = self._reconstruction(layer_inputs, before, memory)
    output = self.output_dropout(hidden, deterministic=deterministic)
    hidden, output, resets = (
      array[:, -targets.shape[1] :] for array in (hidden, output, resets)
    )
    change = _mean_square(hidden[:, 1:] - hidden[:, :-1])
    change = jnp.where(resets[:, 1:], 0.0, change)
    activity = Activity(
      _mean_square(hidden if before_dropout else output),
      jnp.pad(change, ((0, 0), (1, 0))),
      reconstruction,
    )
    return adaptive_softmax.nll(output, targets, self.head()), activity, memory

  def log_probs(
    self, inputs: shapes.Tokens, memory: memory_lib.Memory, resets: Any = None
  ) -> tuple[jt.Float[shapes.Array, "B T V"], memory_lib.Memory]:
    """Log-probabilities of every next token."""
    hidden, memory = self(inputs, memory, resets)
    return adaptive_softmax.log_probs(hidden, self.head()), memory

  def head(self) -> adaptive_softmax.Projection:
    """The weights of the softmax."""
    weights = self.softmax(self.embedding.tables, self.embedding.projections)
    return weights._replace(
      temperature=adaptive_softmax.Temperature(self.temperature)
    )


empty_memory = memory_lib.empty


def init_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """Draws all parameters in float32 from one random key, a scalar."""
  model = TransformerXL(config, clamp_len=0, same_length=False)
  tokens = jnp.zeros((1, 1), jnp.int32)
  memory = empty_memory(config, batch_size=1, mem_len=0)
  return model.init(key, tokens, tokens, memory, method="nll")["params"]


def abstract_params(config: schema.ModelConfig) -> shapes.PyTree:
  """Shapes and types of all parameters; uses no device."""
  return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def num_parameters(params: shapes.PyTree) -> int:
  """The number of trained parameters; shared ones count once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def _scanned_blocks(config: schema.ModelConfig):
  """`Block` scanned over its parameters' and the memory's first axis."""
  block = layers.Block
  usual = config.num_layers if device.device_kind() == "cpu" else 1
  unroll = config.scan_unroll or usual
  if config.remat != "none":
    block = nn.remat(
      layers.Block,
      policy=REMAT_POLICIES[config.remat],
      prevent_cse=unroll >= config.num_layers,  # A scan already does.
      static_argnums=(4,),  # `deterministic`; 0 is the module.
    )
  return nn.scan(
    block,
    variable_axes={"params": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=(0, nn.broadcast, nn.broadcast),
    out_axes=0,
    length=config.num_layers,
    unroll=unroll,
  )


def _mean_square(states: jax.Array) -> jax.Array:
  """[B, T, D] to [B, T], in float32."""
  return jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)
