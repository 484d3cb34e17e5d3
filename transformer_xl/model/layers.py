"""The layers of Transformer-XL: Linen modules that name parameters.

`Block` is the only place where a layer is wired. Training, cached keys and
values, and analyses differ in the source of keys and values that they pass.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model import sources
from transformer_xl.model.encodings import table
from transformer_xl.model.kernels import dense


class Attention(nn.Module):
  """Attention to the keys and values of a source."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: Any,
    source: sources.Source,
    deterministic: bool,
  ) -> tuple[shapes.Hidden, Any]:
    """Attends from the segment.

    Args:
      queries: rows of the segment.
      context: rows that the source projects to keys and values.
      memory: what the source remembers in this layer.
      source: of keys and values.
      deterministic: without dropout.

    Returns:
      A term to add to the segment's hidden states, and what the source keeps.
    """
    config = self.config
    values, kept = source.attend(
      self,
      queries,
      context,
      memory,
      dropout=_attention_dropout(self, queries.shape[0], deterministic),
      deterministic=deterministic,
    )
    width = config.num_heads * config.head_dim
    values = values.reshape(*queries.shape[:-1], width)
    kernel = parameters.matrix(
      self, "output", (width, config.model_dim), deterministic=deterministic
    )
    output = dense.times(values, kernel)
    return state_dropout(config)(output, deterministic=deterministic), kept


class FeedForward(nn.Module):
  """Two dense layers with a ReLU and dropout after each."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self, hidden: shapes.Hidden, deterministic: bool
  ) -> shapes.Hidden:
    """Maps each position by itself."""
    config = self.config
    matrix = functools.partial(
      parameters.matrix, self, deterministic=deterministic
    )
    offset = functools.partial(parameters.vector, self)
    dropout = functools.partial(
      state_dropout(config), deterministic=deterministic
    )
    kernel = matrix("in_kernel", (config.model_dim, config.ff_dim))
    inner = dense.times(hidden, kernel)
    inner = inner + offset("in_bias", config.ff_dim)[None, None]
    inner = dropout(inner, relu=True)
    kernel = matrix("out_kernel", (config.ff_dim, config.model_dim))
    output = dense.times(inner, kernel)
    output = output + offset("out_bias", config.model_dim)[None, None]
    return dropout(output)


class LayerNorm(nn.Module):
  """Layer norm with statistics in float32.

  The scale starts from 1, or from N(1, init_std) with `init_style="pytorch"`.
  """

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
    return _normalised(hidden, scale, offset, config.layer_norm_epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalised(hidden, scale, offset, epsilon):
  return _norm_forward(hidden, scale, offset, epsilon)[0]


def _norm_forward(hidden, scale, offset, epsilon):
  """Keeps nothing that is wider than its input."""
  hidden = ad_checkpoint.checkpoint_name(hidden, "norm_input")
  wide = hidden.astype(jnp.float32)
  mean = jnp.mean(wide, axis=-1, keepdims=True)
  if hidden.dtype == jnp.float32:
    variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
  else:  # One pass; the rows have far fewer digits than the difference loses.
    squares = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    variance = jnp.maximum(squares - jnp.square(mean), 0)
  # A row of zeros (a dropped word that sees no other) stays zero. Otherwise
  # every norm would multiply its gradient by 1 / sqrt(epsilon), to infinity.
  factor = jnp.where(variance > 0, jax.lax.rsqrt(variance + epsilon), 0.0)
  result = (wide - mean) * factor * scale[None, None] + offset[None, None]
  return result.astype(hidden.dtype), (hidden, scale, mean, factor)


def _norm_backward(epsilon, residuals, gradient):
  del epsilon  # It is in the factor.
  hidden, scale, mean, factor = residuals
  normal = (hidden.astype(jnp.float32) - mean) * factor
  gradient = gradient.astype(jnp.float32)
  of_normal = gradient * scale[None, None]
  along = jnp.mean(of_normal * normal, axis=-1, keepdims=True)
  across = of_normal - jnp.mean(of_normal, axis=-1, keepdims=True)
  of_hidden = factor * (across - normal * along)
  return (
    of_hidden.astype(hidden.dtype),
    jnp.sum(gradient * normal, axis=(0, 1)),
    jnp.sum(gradient, axis=(0, 1)),
  )


_normalised.defvjp(_norm_forward, _norm_backward)


class Block(nn.Module):
  """One layer; the body of the scan over layers."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    memory: Any,
    source: sources.Source,
    deterministic: bool,
  ) -> tuple[shapes.Hidden, tuple[shapes.Hidden, Any]]:
    """Reads a segment.

    Args:
      hidden: output of the layer below.
      memory: what the source remembers in this layer.
      source: of keys and values.
      deterministic: without dropout.

    Returns:
      The layer's output; its input, for a memory of hidden states; and what
      the source keeps.
    """
    config = self.config
    attention_norm = LayerNorm(config, name="attention_norm")
    feed_forward_norm = LayerNorm(config, name="feed_forward_norm")
    attend = Attention(config, name="attention")
    feed_forward = FeedForward(config, name="feed_forward")
    segment_len = hidden.shape[1]
    positions = table.of(config).layer_positions(
      self, source.first_position, segment_len
    )
    if positions is not None:
      hidden = hidden + positions[None]
    context = source.context(hidden, memory)  # [B, K, D]
    shared = (memory, source, deterministic)
    if config.pre_norm:
      context = attention_norm(context)
      queries = context[:, context.shape[1] - segment_len :]
      values, kept = attend(queries, context, *shared)
      inner = hidden + values
      output = inner + feed_forward(feed_forward_norm(inner), deterministic)
    else:
      values, kept = attend(hidden, context, *shared)
      inner = attention_norm(hidden + values)
      output = feed_forward_norm(inner + feed_forward(inner, deterministic))
    return output, (hidden, kept)


def state_dropout(
  config: schema.ModelConfig, rate: float | None = None
) -> dropout_lib.Dropout:
  """Dropout of states [B, T, D].

  Args:
    config: of the model; with `locked_dropout` all tokens of a lane share a
      mask.
    rate: `dropout_rate` unless another is given.
  """
  rate = config.dropout_rate if rate is None else rate
  return dropout_lib.Dropout(rate, config.locked_dropout)


def _attention_dropout(
  module: nn.Module, lanes: int, deterministic: bool
) -> dropout_lib.AttentionDropout | None:
  config: schema.ModelConfig = module.config  # type: ignore[attr-defined]
  rate = config.attention_dropout_rate
  if rate == 0 or deterministic:
    return None
  return dropout_lib.of_attention(module, rate, (lanes, config.num_heads))


def _normal_around_one(std: float):
  return lambda *args: 1 + nn.initializers.normal(std)(*args)
