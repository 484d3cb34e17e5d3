"""The layers of Transformer-XL: Linen modules that name parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import ad_checkpoint

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import attention
from transformer_xl.model import attention_dropout
from transformer_xl.model.encodings import distances
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import dispatch

# What is added to hidden states; nothing then depends on distance itself.
ABSOLUTE = ("absolute", "absolute_per_layer")


class Attention(nn.Module):
  """Attention over memory and segment, by what `config.encoding` says."""

  config: schema.ModelConfig

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

    content_bias, position_bias = biases or attention_biases(self, config)
    dropout = None
    if config.attention_dropout_rate > 0 and not deterministic:
      bits = jax.random.bits(self.make_rng("dropout"), (hidden.shape[0], heads))
      seeds = jax.lax.bitcast_convert_type(bits, jnp.int32)
      dropout = attention_dropout.Dropout(config.attention_dropout_rate, seeds)
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
    return state_dropout(config)(output, deterministic=deterministic)


class FeedForward(nn.Module):
  """Two dense layers with a ReLU and dropout after each."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self, hidden: shapes.Hidden, deterministic: bool
  ) -> shapes.Hidden:
    """Maps each position by itself."""
    config = self.config
    matrix = functools.partial(_matrix, self, config, deterministic)
    offset = functools.partial(_vector, self, config, nn.initializers.zeros)
    dropout = functools.partial(
      state_dropout(config), deterministic=deterministic
    )
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

  config: schema.ModelConfig

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

  config: schema.ModelConfig

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


def state_dropout(config, rate=None) -> nn.Dropout:
  """Of states [B, T, D], at the rate that holds in all layers or another."""
  shared = (1,) if config.locked_dropout else ()
  rate = config.dropout_rate if rate is None else rate
  return nn.Dropout(rate, broadcast_dims=shared)


def _vector(module, config, init, name, width) -> jax.Array:
  return module.param(name, init, (width,), jnp.float32).astype(config.dtype)


def attention_biases(module, config) -> tuple[jax.Array, jax.Array]:
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
  rows = distances.clipped_rows(table, context_len)
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
