"""Floating-point operations of one token's prediction."""

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
  a convolution that compresses memory, 2 D^2; and the softmax over the
  shortlist. `mem_len` includes compressed slots. Not counted are masked keys,
  projecting memory and distances again for every segment, and tail clusters,
  which most tokens do not need.
  """
  width = config.num_heads * config.head_dim
  keys = mem_len + (segment_len + 1) / 2
  layer = 4 * config.model_dim * (2 * width + config.ff_dim)
  if config.compression == "conv":
    layer += 2 * config.model_dim**2
  attention = 2 * table.of(config).score_products * width * keys
  ends = (*config.cutoffs, config.vocab_size)
  head = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  return config.num_layers * (layer + attention) + head


def mfu(
  tokens_per_second: float, config: schema.ModelConfig, **lengths: int
) -> float | None:
  """Useful training FLOPs (three forward passes) over the devices' peak.

  None where the peak of the device is not known. The lengths are those of
  `forward_flops_per_token`.
  """
  peak = hardware.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  if peak is None:
    return None
  flops = 3 * forward_flops_per_token(config, **lengths)
  return tokens_per_second * flops / (peak * jax.device_count())
