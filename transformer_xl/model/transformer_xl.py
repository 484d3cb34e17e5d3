"""Transformer-XL in Linen: modules name parameters and call pure functions.

    outputs, memory = model.apply({"params": params}, inputs, memory, resets)

Memory goes in as an argument and comes out as a result. Its length, the
segment's and the clamp are not parameter shapes, so one set of parameters
serves any of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import compression
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import layers
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import network
from transformer_xl.model import sources
from transformer_xl.model import visibility
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


class TransformerXL(network.Network):
  """The network of the paper; `kinds` has the others."""

  def setup(self) -> None:
    """Names the submodules and shared parameters."""
    super().setup()
    config = self.config
    self.biases = table.of(config).shared_biases(self)
    self.compression = compression.weights(self)
    self.layers = _scanned_blocks(config, config.num_layers)(config)
    # All lanes share one mask; if locked, so do all distances.
    self.position_dropout = dropout_lib.Dropout(
      config.input_dropout_rate, config.locked_dropout
    )

  def inspect(
    self, inputs: shapes.Tokens, memory: memory_lib.Memory, resets: Any = None
  ) -> tuple[
    shapes.Hidden,
    memory_lib.Memory,
    list[tuple[encoding.ScoreFactors, jax.Array]],
  ]:
    """`__call__`, with what attention is computed from.

    That is the factors of scores and the reach of queries, `shapes.Reach`, for
    each group of `memory`; its layers are their first axis.
    """
    reading = self._read(inputs, memory, resets, None, sources.InspectedStates)
    return reading[:3]

  def embed(
    self,
    inputs: shapes.Tokens,
    *,
    first_position: int | jax.Array = 0,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> shapes.Hidden:
    """The input of the first layer.

    `first_position`, a scalar, is that of the first token in its segment; it
    matters only to encodings that count from the start of a segment.
    """
    config = self.config
    hidden = self.words(inputs, dropout_lanes=dropout_lanes)
    positions = table.of(config).embedding_positions(
      config, first_position, inputs.shape[1]
    )
    if positions is not None:
      hidden = hidden + positions[None]
    return self.input_dropout(hidden, dropout_lanes=dropout_lanes)

  def _read(self, inputs, memory, resets, dropout_lanes, source: Any = None):
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
    groups = memory.groups
    reaches = [
      memory_lib.reach(
        group,
        resets,
        rate=config.compression_rate,
        same_length=self.same_length,
        window=config.same_length_window,
      )
      for group in groups
    ]
    states = [group.states for group in groups]
    context_lens = [rows.shape[2] + inputs.shape[1] for rows in states]
    positions = table.of(config).positions(
      config, max(context_lens), clamp_len=self.clamp_len
    )
    if positions is not None:
      positions = self.position_dropout(positions, dropout_lanes=dropout_lanes)
    hidden, first = self.embed(inputs, dropout_lanes=dropout_lanes), 0
    read, kept = [], []
    each = zip(states, context_lens, reaches, strict=True)
    for remembered, context_len, reach in each:
      nearest = positions
      if positions is not None:  # The smallest distances are last.
        nearest = positions[-context_len:]
      hidden, (group_inputs, factors) = self._group(first, len(remembered))(
        hidden,
        remembered,
        source(nearest, self.biases, reach),
        dropout_lanes,
      )
      first += len(remembered)
      read.append(group_inputs)
      kept.append(factors)
    layer_inputs = memory_lib.hiddens_of(read)
    memory = memory_lib.append(
      memory,
      layer_inputs,
      resets,
      with_gradient=passes,
      compress=self._compress,
    )
    return hidden, memory, kept, layer_inputs

  def _group(self, first: int, count: int) -> Callable[..., Any]:
    """Neighbouring layers, with their part of the stacked parameters."""
    if count == self.config.num_layers:
      return self.layers
    stacked = self.layers.variables["params"]
    params = jax.tree.map(lambda leaf: leaf[first : first + count], stacked)
    rngs = {}
    if self.has_rng("dropout"):
      rngs["dropout"] = self.make_rng("dropout")
    blocks = _scanned_blocks(self.config, count)(self.config, parent=None)
    return functools.partial(blocks.apply, {"params": params}, rngs=rngs)

  def _compress(self, states):
    """[N, B, T, D] to [N, B, T / c, D]."""
    each = functools.partial(compression.compress, config=self.config)
    return jax.vmap(each)(states, self.compression)

  def _reconstruction(self, before, after, kept, layer_inputs):
    """`compression.reconstruction` for the memory around a segment."""
    del kept
    if self.compression is None or before.compressed is None:
      return None
    leaving = memory_lib.leaving(before, layer_inputs)
    leaving = jax.lax.stop_gradient(leaving)
    num_slots = visibility.whole_slots(
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


def layer_flops(
  config: schema.ModelConfig,
  *,
  segment_len: int,
  mem_len: int,
  context_len: int = 0,
) -> float:
  """Useful operations of all layers for a token.

  Counted are the projections of query, key, value and output, 8 D H Dh; the
  feed-forward layers, 4 D F; the encoding's p products of attention,
  2 p H Dh k, over the k keys that a token sees on average, M + (T + 1) / 2 with
  the M of each layer, or with the context that is read again instead; and a
  convolution that compresses memory, 2 D^2. `mem_len` includes compressed
  slots. Not counted are masked keys, and projecting memory and distances again
  for every segment.
  """
  width = config.num_heads * config.head_dim
  lens = memory_lib.layer_lens(config, mem_len)
  keys = sum(lens) / len(lens) + context_len + (segment_len + 1) / 2
  layer = 4 * config.model_dim * (2 * width + config.ff_dim)
  if config.compression == "conv":
    layer += 2 * config.model_dim**2
  attention = 2 * table.of(config).score_products * width * keys
  return config.num_layers * (layer + attention)


def _scanned_blocks(config: schema.ModelConfig, count: int):
  """`Block` scanned over its parameters' and the memory's first axis."""
  block = layers.Block
  usual = count if device.device_kind() == "cpu" else 1
  unroll = config.scan_unroll or usual
  if config.remat != "none":
    block = nn.remat(
      layers.Block,
      policy=REMAT_POLICIES[config.remat],
      prevent_cse=unroll >= count,  # A scan already does.
    )
  return nn.scan(
    block,
    variable_axes={"params": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=(0, nn.broadcast, nn.broadcast),
    out_axes=0,
    length=count,
    unroll=unroll,
  )
