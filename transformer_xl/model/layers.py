"""The layers of Transformer-XL: Linen modules that name parameters.

`Block` is the only place where a layer is wired. Training, cached keys and
values, and analyses differ in the source of keys and values that they pass.
"""

import functools
from typing import Any

import flax.linen as nn

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import layer_norm
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
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Hidden, Any]:
    """Attends from the segment.

    Args:
      queries: rows of the segment.
      context: rows that the source projects to keys and values.
      memory: what the source remembers in this layer.
      source: of keys and values.
      dropout_lanes: numbers of the lanes in the batch; None without dropout.

    Returns:
      A term to add to the segment's hidden states, and what the source keeps.
    """
    config = self.config
    values, kept = source.attend(
      self,
      queries,
      context,
      memory,
      dropout=_attention_dropout(self, dropout_lanes),
      dropout_lanes=dropout_lanes,
    )
    width = config.num_heads * config.head_dim
    values = values.reshape(*queries.shape[:-1], width)
    kernel = parameters.matrix(
      self, "output", (width, config.model_dim), dropout_lanes=dropout_lanes
    )
    output = dense.times(values, kernel)
    return state_dropout(config)(output, dropout_lanes=dropout_lanes), kept


class FeedForward(nn.Module):
  """Two dense layers with a ReLU and dropout after each."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self, hidden: shapes.Hidden, dropout_lanes: shapes.Lanes | None
  ) -> shapes.Hidden:
    """Maps each position by itself."""
    config = self.config
    matrix = functools.partial(
      parameters.matrix, self, dropout_lanes=dropout_lanes
    )
    offset = functools.partial(parameters.vector, self)
    dropout = functools.partial(
      state_dropout(config), dropout_lanes=dropout_lanes
    )
    kernel = matrix("in_kernel", (config.model_dim, config.ff_dim))
    inner = dense.times(hidden, kernel)
    inner = inner + offset("in_bias", config.ff_dim)[None, None]
    inner = dropout(inner, relu=True)
    kernel = matrix("out_kernel", (config.ff_dim, config.model_dim))
    output = dense.times(inner, kernel)
    output = output + offset("out_bias", config.model_dim)[None, None]
    return dropout(output)


class Block(nn.Module):
  """One layer; the body of the scan over layers."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    memory: Any,
    source: sources.Source,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Hidden, tuple[shapes.Hidden, Any]]:
    """Reads a segment.

    Args:
      hidden: output of the layer below.
      memory: what the source remembers in this layer.
      source: of keys and values.
      dropout_lanes: numbers of the lanes in the batch; None without dropout.

    Returns:
      The layer's output; its input, for a memory of hidden states; and what
      the source keeps.
    """
    config = self.config
    attention_norm = layer_norm.LayerNorm(config, name="attention_norm")
    feed_forward_norm = layer_norm.LayerNorm(config, name="feed_forward_norm")
    attend = Attention(config, name="attention")
    feed_forward = FeedForward(config, name="feed_forward")
    segment_len = hidden.shape[1]
    positions = table.of(config).layer_positions(
      self, source.first_position, segment_len
    )
    if positions is not None:
      hidden = hidden + positions[None]
    context = source.context(hidden, memory)  # [B, K, D]
    shared = (memory, source, dropout_lanes)
    if config.pre_norm:
      context = attention_norm(context)
      queries = context[:, context.shape[1] - segment_len :]
      values, kept = attend(queries, context, *shared)
      inner = hidden + values
      output = inner + feed_forward(feed_forward_norm(inner), dropout_lanes)
    else:
      values, kept = attend(hidden, context, *shared)
      inner = attention_norm(hidden + values)
      output = feed_forward_norm(inner + feed_forward(inner, dropout_lanes))
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
  module: nn.Module, dropout_lanes: shapes.Lanes | None
) -> dropout_lib.AttentionDropout | None:
  config: schema.ModelConfig = module.config  # type: ignore[attr-defined]
  rate = config.attention_dropout_rate
  if rate == 0 or dropout_lanes is None:
    return None
  return dropout_lib.of_attention(
    module, rate, dropout_lanes, num_heads=config.num_heads
  )
