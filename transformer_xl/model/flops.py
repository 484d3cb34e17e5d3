"""Floating-point operations of one token's prediction."""

import jax

from transformer_xl import hardware
from transformer_xl.config import schema
from transformer_xl.model import kinds


def forward_flops_per_token(
  config: schema.ModelConfig, **lengths: int
) -> float:
  """Useful operations, two for each multiply-add, of one token's prediction.

  Counted are those of the layers, which their kind counts for these lengths,
  and the softmax over the shortlist. Not counted are tail clusters, which most
  tokens do not need.
  """
  layers = kinds.of(config).layer_flops(config, **lengths)
  ends = (*config.cutoffs, config.vocab_size)
  head = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  return layers + head


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
