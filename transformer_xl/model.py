"""Transformer-XL in Linen: modules name parameters and call pure functions.

    outputs, memory = model.apply({"params": params}, inputs, memory, resets)

Memory goes in as an argument and comes out as a result. Its length, the
segment's and the clamp are not parameter shapes, so one set of parameters
serves any of them.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import ad_checkpoint

from transformer_xl import adaptive_softmax
from transformer_xl import attention
from transformer_xl import config as config_lib
from transformer_xl import errors
from transformer_xl import memory as memory_lib
from transformer_xl import shapes
from transformer_xl.kernels import dense
from transformer_xl.kernels import dispatch

# What is added to hidden states; nothing then depends on distance itself.
ABSOLUTE = ("absolute", "absolute_per_layer")
REMAT_POLICIES = {
  "full": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "attention": jax.checkpoint_policies.save_only_these_names(
    "attention_output", "feed_forward_hidden"
  ),
}


class Attention(nn.Module):
  """Attention over memory and segment, by what `config.encoding` says."""

  config: config_lib.ModelConfig

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    context: jt.Float[shapes.Array, "B K D"],
    positions: shapes.Positions | None,
    reach: shapes.Reach,
    biases: tuple[shapes.Biases, shapes.Biases] | None,
    deterministic: bool,
  ) -> shapes.Hidden:
    """Attends from the segment to memory and segment.

    Args:
      hidden: the segment.
      context: memory, then segment.
      positions: encodings of the distances K-1 to 0; only if "relative".
      reach: largest visible distance for each query.
      biases: u and v where all layers share them.
      deterministic: without dropout.
    """
    config = self.config
    heads, width = config.num_heads, config.head_dim
    matrix = functools.partial(_matrix, self, config, deterministic)

    def project(name, rows):
      kernel = matrix(name, (config.model_dim, heads * width))
      projected = dense.times(rows, kernel)
      return projected.reshape(*rows.shape[:-1], heads, width)

    content_bias, position_bias = biases or _biases(self, config)
    dropout = None
    if config.attention_dropout_rate > 0 and not deterministic:
      bits = jax.random.bits(self.make_rng("dropout"), (hidden.shape[0], heads))
      seeds = jax.lax.bitcast_convert_type(bits, jnp.int32)
      dropout = attention.Dropout(config.attention_dropout_rate, seeds)
    arrays = (
      project("query", hidden),
      project("key", context),
      project("value", context),
    )
    if config.encoding in ABSOLUTE:
      values = attention.absolute_attention(
        *arrays, reach=reach, dropout=dropout
      )
      values = ad_checkpoint.checkpoint_name(values, "attention_output")
    else:
      values = dispatch.relative_attention(
        *arrays,
        _distance_keys(self, config, context.shape[1])
        if positions is None
        else project("position", positions),
        content_bias=content_bias.astype(config.dtype),
        position_bias=position_bias.astype(config.dtype),
        reach=reach,
        dropout=dropout,
        implementation=config.attention,
      )
    values = values.reshape(*hidden.shape[:-1], heads * width)
    kernel = matrix("output", (heads * width, config.model_dim))
    output = dense.times(values, kernel)
    return _dropout(config)(output, deterministic=deterministic)


class FeedForward(nn.Module):
  """Two dense layers with a ReLU and dropout after each."""

  config: config_lib.ModelConfig

  @nn.compact
  def __call__(
    self, hidden: shapes.Hidden, deterministic: bool
  ) -> shapes.Hidden:
    """Maps each position by itself."""
    config = self.config
    matrix = functools.partial(_matrix, self, config, deterministic)
    offset = functools.partial(_vector, self, config, nn.initializers.zeros)
    dropout = functools.partial(_dropout(config), deterministic=deterministic)
    kernel = matrix("in_kernel", (config.model_dim, config.ff_dim))
    inner = dense.times(hidden, kernel)
    inner = inner + offset("in_bias", config.ff_dim)[None, None]
    inner = ad_checkpoint.checkpoint_name(inner, "feed_forward_hidden")
    inner = dropout(nn.relu(inner))
    kernel = matrix("out_kernel", (config.ff_dim, config.model_dim))
    output = dense.times(inner, kernel)
    output = output + offset("out_bias", config.model_dim)[None, None]
    return dropout(output)


class LayerNorm(nn.Module):
  """Layer norm with statistics in float32 and either published start."""

  config: config_lib.ModelConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Normalises the last axis of [B, T, D]."""
    config = self.config
    scale_init = (
      _normal_around_one(config.init_std)
      if config.init_style == "pytorch"
      else nn.initializers.ones
    )
    width = (hidden.shape[-1],)
    scale = self.param("scale", scale_init, width, jnp.float32)
    offset = self.param("bias", nn.initializers.zeros, width, jnp.float32)
    wide = hidden.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    # A row of zeros (a dropped word that sees no other) stays one, and without
    # this every norm multiplies its gradient by 1 / sqrt(epsilon), to infinity.
    factor = jax.lax.rsqrt(variance + config.layer_norm_epsilon)
    normal = centred * jnp.where(variance > 0, factor, 0.0)
    result = normal * scale[None, None] + offset[None, None]
    return result.astype(hidden.dtype)


class Block(nn.Module):
  """One layer; the body of the scan over layers."""

  config: config_lib.ModelConfig

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    memory: shapes.LayerMemory,
    positions: shapes.Positions | None,
    reach: shapes.Reach,
    biases: tuple[shapes.Biases, shapes.Biases] | None,
    deterministic: bool,
  ) -> tuple[shapes.Hidden, shapes.Hidden]:
    """Returns the layer's output, and its input for the memory."""
    config = self.config
    attention_norm = LayerNorm(config, name="attention_norm")
    feed_forward_norm = LayerNorm(config, name="feed_forward_norm")
    attend = Attention(config, name="attention")
    feed_forward = FeedForward(config, name="feed_forward")
    if config.encoding == "absolute_per_layer":
      hidden = hidden + _segment_positions(self, config, hidden.shape[1])[None]
    context = jnp.concatenate([memory, hidden], axis=1)  # [B, M+T, D]
    shared = (positions, reach, biases, deterministic)
    if config.pre_norm:
      context = attention_norm(context)
      query = context[:, memory.shape[1] :]
      inner = hidden + attend(query, context, *shared)
      output = inner + feed_forward(feed_forward_norm(inner), deterministic)
    else:
      inner = attention_norm(hidden + attend(hidden, context, *shared))
      output = feed_forward_norm(inner + feed_forward(inner, deterministic))
    return output, hidden


class TransformerXL(nn.Module):
  """The language model.

  Attributes:
    config: what shapes the parameters and their function.
    clamp_len: distances beyond it share its encoding; 0 for none.
    same_length: every query sees equally many keys.
  """

  config: config_lib.ModelConfig
  clamp_len: int
  same_length: bool

  def setup(self) -> None:
    """Names the parts."""
    config = self.config
    self.embedding = adaptive_softmax.AdaptiveEmbedding(config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(config)
    if config.encoding == "relative" and not config.untie_biases:
      self.biases = _biases(self, config)
    self.layers = _scanned_blocks(config)(config)
    self.input_dropout = _dropout(config, config.input_dropout_rate)
    self.output_dropout = _dropout(config, config.output_dropout_rate)
    # One mask for all lanes, and if locked for all distances, too.
    self.position_dropout = nn.Dropout(
      config.dropout_rate, broadcast_dims=(0,) if config.locked_dropout else ()
    )
    self.word_dropout = nn.Dropout(config.embedding_dropout_rate)

  def __call__(
    self,
    inputs: shapes.Tokens,
    memory: memory_lib.Memory,
    resets: shapes.Resets | None = None,
    *,
    deterministic: bool = True,
  ) -> tuple[shapes.Hidden, memory_lib.Memory]:
    """Reads one segment.

    Args:
      inputs: token ids.
      memory: of the tokens before; see `memory.empty`.
      resets: True where a token is the first of a document: from there on
        nothing before it is visible, here and in later segments.
      deterministic: without dropout; otherwise a "dropout" key is needed.

    Returns:
      The last layer's states, and the memory for the next segment.
    """
    hidden, memory = self._read(inputs, memory, resets, deterministic)
    return self.output_dropout(hidden, deterministic=deterministic), memory

  def _read(self, inputs, memory, resets, deterministic):
    """`__call__` without the dropout of what leaves the layers."""
    config = self.config
    if resets is None:
      resets = jnp.zeros(inputs.shape, bool)
    # A reset at the first token concerns the whole lane and its memory; later
    # ones split the segment and are masks.
    memory = memory_lib.reset(memory, resets[:, 0], start=config.memory_start)
    resets = resets.at[:, 0].set(False)
    reach = memory_lib.reach(
      memory,
      resets,
      same_length=self.same_length,
      window=config.same_length_window,
    )
    positions, biases = None, None
    if config.encoding == "relative":
      positions = attention.position_encodings(
        memory.hiddens.shape[2] + inputs.shape[1],
        config.model_dim,
        clamp_len=self.clamp_len,
      ).astype(config.dtype)
      positions = self.position_dropout(positions, deterministic=deterministic)
      biases = None if config.untie_biases else self.biases
    hidden = self.embedding(inputs)
    if config.embedding_dropout_rate and not deterministic:
      words = jnp.ones((config.vocab_size,), hidden.dtype)
      words = self.word_dropout(words, deterministic=False)
      hidden = hidden * words[inputs][:, :, None]
    if config.encoding == "absolute":
      index = jnp.arange(inputs.shape[1], dtype=jnp.float32)
      encodings = attention.sinusoids(index, config.model_dim)
      hidden = hidden + encodings.astype(config.dtype)[None]
    hidden = self.input_dropout(hidden, deterministic=deterministic)
    hidden, layer_inputs = self.layers(
      hidden,
      jax.lax.stop_gradient(memory.hiddens),
      positions,
      reach,
      biases,
      deterministic,
    )
    return hidden, memory_lib.append(memory, layer_inputs, resets)

  def nll(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Tokens,
    memory: memory_lib.Memory,
    resets: shapes.Resets | None = None,
    *,
    deterministic: bool = True,
  ) -> tuple[shapes.Losses, memory_lib.Memory]:
    """Negative log-probability of each target, in nats and token order."""
    hidden, memory = self(inputs, memory, resets, deterministic=deterministic)
    return self._losses(hidden, targets), memory

  def penalised_nll(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Tokens,
    memory: memory_lib.Memory,
    resets: shapes.Resets,
    *,
    activation: float,
    temporal: float,
    deterministic: bool = False,
  ) -> tuple[shapes.Losses, shapes.Losses, memory_lib.Memory]:
    """`nll`, and what training adds to each token's loss beside it.

    AR and TAR of AWD-LSTM (Merity et al. 2017, section 4.6): the mean square
    of the states that enter the softmax, and of the difference between those
    of a token and the one before in its segment, of the same document.
    Neither costs anything where its weight is 0.

    Args:
      inputs: as in `__call__`, like memory and resets.
      targets: as in `nll`.
      memory: of the tokens before.
      resets: where documents start.
      activation: weight of the first.
      temporal: weight of the second.
      deterministic: without dropout.
    """
    hidden, memory = self._read(inputs, memory, resets, deterministic)
    output = self.output_dropout(hidden, deterministic=deterministic)
    penalties = jnp.zeros(inputs.shape, jnp.float32)
    if activation:
      penalties += activation * _mean_square(output)
    if temporal:
      change = _mean_square(hidden[:, 1:] - hidden[:, :-1])
      change = jnp.where(resets[:, 1:], 0.0, change)
      penalties = penalties.at[:, 1:].add(temporal * change)
    return self._losses(output, targets), penalties, memory

  def _losses(self, hidden, targets) -> shapes.Losses:
    return adaptive_softmax.nll(
      hidden,
      targets,
      self.head(),
      capacities=self.config.cluster_capacities,
    )

  def log_probs(
    self,
    inputs: shapes.Tokens,
    memory: memory_lib.Memory,
    resets: shapes.Resets | None = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], memory_lib.Memory]:
    """Log-probabilities of every next token."""
    hidden, memory = self(inputs, memory, resets)
    return adaptive_softmax.log_probs(hidden, self.head()), memory

  def head(self) -> adaptive_softmax.Projection:
    """The weights of the softmax."""
    return self.softmax(self.embedding.tables, self.embedding.projections)


def empty_memory(
  config: config_lib.ModelConfig, *, batch_size: int, mem_len: int
) -> memory_lib.Memory:
  """The memory that a model starts from."""
  return memory_lib.empty(
    config.num_layers,
    batch_size,
    mem_len,
    config.model_dim,
    dtype=jnp.dtype(config.dtype),
    start=config.memory_start,
  )


def init_params(
  config: config_lib.ModelConfig, key: jax.Array
) -> shapes.PyTree:
  """Draws all parameters, in float32, from a key, a scalar."""
  model = TransformerXL(config, clamp_len=0, same_length=False)
  tokens = jnp.zeros((1, 1), jnp.int32)
  memory = empty_memory(config, batch_size=1, mem_len=0)
  return model.init(key, tokens, tokens, memory, method="nll")["params"]


def num_parameters(params: shapes.PyTree) -> int:
  """How many numbers there are to train; shared ones count once."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _scanned_blocks(config: config_lib.ModelConfig):
  """`Block` scanned over its parameters' and the memory's first axis."""
  block, unroll = Block, config.scan_unroll
  if not unroll:
    unroll = config.num_layers if dispatch.device_kind() == "cpu" else 1
  if config.remat != "none":
    block = nn.remat(
      Block,
      policy=REMAT_POLICIES[config.remat],
      prevent_cse=unroll >= config.num_layers,  # A scan already does.
      static_argnums=(6,),  # `deterministic`; 0 is the module.
    )
  return nn.scan(
    block,
    variable_axes={"params": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=(0, *[nn.broadcast] * 4),
    out_axes=0,
    length=config.num_layers,
    unroll=unroll,
  )


def _kernel(module, config, name, shape) -> jax.Array:
  init = nn.initializers.normal(config.init_std)
  return module.param(name, init, shape, jnp.float32).astype(config.dtype)


def _matrix(module, config, deterministic, name, shape) -> jax.Array:
  """A kernel of which training may drop single weights.

  They are dropped after the cast: nothing of the matrix's size is float32.
  """
  kernel = _kernel(module, config, name, shape)
  drop = nn.Dropout(config.weight_dropout_rate, name=f"{name}_dropout")
  return drop(kernel, deterministic=deterministic)


def _dropout(config, rate=None) -> nn.Dropout:
  """Of states [B, T, D], at the rate that holds in all layers or another."""
  shared = (1,) if config.locked_dropout else ()
  rate = config.dropout_rate if rate is None else rate
  return nn.Dropout(rate, broadcast_dims=shared)


def _mean_square(states: jax.Array) -> jax.Array:
  """[B, T, D] to [B, T], in float32."""
  return jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)


def _vector(module, config, init, name, width) -> jax.Array:
  return module.param(name, init, (width,), jnp.float32).astype(config.dtype)


def _biases(module, config) -> tuple[jax.Array, jax.Array]:
  """u and v of the paper; terms (a) and (b) alone need none."""
  init = nn.initializers.normal(config.init_std)
  shape = (config.num_heads, config.head_dim)
  if config.encoding != "relative":
    return jnp.zeros(shape), jnp.zeros(shape)
  return (
    module.param("content_bias", init, shape, jnp.float32),
    module.param("position_bias", init, shape, jnp.float32),
  )


def _distance_keys(module, config, context_len) -> jax.Array:
  """Shaw's learned keys of the distances K-1 to 0, [K, H, Dh]; clipped."""
  heads, width = config.num_heads, config.head_dim
  shape = (config.num_positions, heads * width)
  table = _kernel(module, config, "distances", shape)
  rows = attention.clipped_rows(table, context_len)
  return rows.reshape(context_len, heads, width)


def _segment_positions(module, config, segment_len) -> jax.Array:
  """Learned vectors of the positions in a segment, [T, D]."""
  if segment_len > config.num_positions:
    raise errors.UserError(
      f"the model has learned {config.num_positions} positions and cannot "
      f"read a segment of {segment_len}; use shorter segments, or train with "
      f"--config.model.num_positions={segment_len}."
    )
  shape = (config.num_positions, config.model_dim)
  return _kernel(module, config, "positions", shape)[:segment_len]


def _normal_around_one(std: float):
  return lambda *args: 1 + nn.initializers.normal(std)(*args)
