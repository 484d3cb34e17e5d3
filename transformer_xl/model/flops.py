"""Floating-point operations of one token's prediction."""

from typing import NamedTuple

import jax

from transformer_xl import hardware
from transformer_xl.config import schema
from transformer_xl.model.encodings import table


def forward_flops_per_token(
  config: schema.ModelConfig, *, segment_len: int, mem_len: int
) -> float:
  """Useful operations, two for each multiply-add, of one token's prediction.

  Counted are the projections of query, key, value and output, 8 D H Dh; the
  feed-forward layers, 4 D F; the encoding's p products of attention,
  2 p H Dh k, over the k keys that a token sees on average, M + (T + 1) / 2;
  and the softmax over the shortlist. Not counted are masked keys, projecting
  memory and distances again for every segment, and tail clusters, which most
  tokens do not need.
  """
  width = config.num_heads * config.head_dim
  keys = mem_len + (segment_len + 1) / 2
  layer: float = (
    8 * config.model_dim * width + 4 * config.model_dim * config.ff_dim
  )
  layer += 2 * table.of(config).score_products * width * keys
  ends = (*config.cutoffs, config.vocab_size)
  head = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  return config.num_layers * layer + head


class Work(NamedTuple):
  """Operations of one token's forward pass; a training step has three."""

  useful: float  # `forward_flops_per_token`.
  executed: float  # In matrix products, masked ones included.
  reprojection: float  # Part of `executed`: keys and values of memory.


def forward_work(
  config: schema.ModelConfig,
  *,
  batch_size: int,
  segment_len: int,
  mem_len: int,
  num_slots: int = 0,
) -> Work:
  """Operations for a token with attention in whole matrices.

  Each of the encoding's p products covers all K = M + T keys, 2 p H Dh K. A
  segment of T tokens projects K keys, K values and, if the encoding does so,
  K distances for all lanes at once. Tail clusters are not counted.

  Args:
    config: of the model.
    batch_size: B; lanes share the projections of distances.
    segment_len: T.
    mem_len: M.
    num_slots: R, if keys and values are cached; then none is projected
      again, and the product with distances has R + T - 1 columns.
  """
  lengths = {"segment_len": segment_len, "mem_len": mem_len}
  useful = forward_flops_per_token(config, **lengths)
  encoding = table.of(config)
  width = config.num_heads * config.head_dim
  product = 2 * encoding.score_products * width  # For each key.
  seen = mem_len + (segment_len + 1) / 2
  dense = useful - config.num_layers * product * seen
  if num_slots:
    products = product * num_slots
    if encoding.score_products > 2:
      products += 2 * width * (segment_len - 1)
    return Work(useful, dense + config.num_layers * products, 0.0)
  keys = mem_len + segment_len
  again = 4 * config.model_dim * width * mem_len / segment_len
  layer = product * keys + again
  if encoding.projects_distances:
    layer += 2 * config.model_dim * width * keys / (batch_size * segment_len)
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
