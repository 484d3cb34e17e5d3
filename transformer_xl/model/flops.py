"""Floating-point operations of one token's prediction."""

from typing import NamedTuple

import jax

from transformer_xl import hardware
from transformer_xl.config import schema
from transformer_xl.model import layers


def forward_flops_per_token(
  config: schema.ModelConfig, *, segment_len: int, mem_len: int
) -> float:
  """Useful operations, two for each multiply-add, of one token's prediction.

  Counted: projections of query, key, value and output 8 D H Dh, feed-forward
  4 D F, and three products (content, position, values) 6 H Dh k over the k
  keys that a token sees on average, M + (T + 1) / 2, of which absolute
  encodings lack the second; and the softmax over the
  shortlist. Not counted: masked keys, projecting memory and positions again
  for every segment, and tail clusters, which most tokens do not need.
  """
  width = config.num_heads * config.head_dim
  keys = mem_len + (segment_len + 1) / 2
  layer: float = (
    8 * config.model_dim * width + 4 * config.model_dim * config.ff_dim
  )
  products = 2 if config.encoding in layers.ABSOLUTE else 3
  layer += 2 * products * width * keys
  ends = (*config.cutoffs, config.vocab_size)
  head = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  return config.num_layers * layer + head


class Work(NamedTuple):
  """Operations of one token's forward pass; a training step has three."""

  useful: float  # `forward_flops_per_token`.
  executed: float  # In matrix products, masked ones included.
  reprojection: float  # Of those: keys and values of memory, made again.


def forward_work(
  config: schema.ModelConfig,
  *,
  batch_size: int,
  segment_len: int,
  mem_len: int,
  num_slots: int = 0,
) -> Work:
  """What relative attention in whole matrices computes for a token.

  Of K = M + T keys, each query sees K of the three products, 6 H Dh K, and a
  segment of T tokens projects K keys, K values and, for all lanes at once, K
  distances. Tail clusters are left out here, too.

  Args:
    config: of the model.
    batch_size: B, who share the distances' projections.
    segment_len: T.
    mem_len: M.
    num_slots: R, where keys and values are cached: none is projected again,
      and the position product has R + T - 1 columns.
  """
  lengths = {"segment_len": segment_len, "mem_len": mem_len}
  useful = forward_flops_per_token(config, **lengths)
  width = config.num_heads * config.head_dim
  seen = mem_len + (segment_len + 1) / 2
  dense = useful - config.num_layers * 6 * width * seen
  if num_slots:
    products = 2 * width * (3 * num_slots + segment_len - 1)
    return Work(useful, dense + config.num_layers * products, 0.0)
  keys = mem_len + segment_len
  again = 4 * config.model_dim * width * mem_len / segment_len
  distances = 2 * config.model_dim * width * keys / (batch_size * segment_len)
  layer = 6 * width * keys + again + distances
  executed = dense + config.num_layers * layer
  return Work(useful, executed, config.num_layers * again)


def mfu(
  tokens_per_second: float,
  config: schema.ModelConfig,
  *,
  segment_len: int,
  mem_len: int,
) -> float | None:
  """Useful training FLOPs (three forward passes) over the devices' peak.

  None where the peak of the device is not known.
  """
  peak = hardware.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  if peak is None:
    return None
  flops = 3 * forward_flops_per_token(
    config, segment_len=segment_len, mem_len=mem_len
  )
  return tokens_per_second * flops / (peak * jax.device_count())
