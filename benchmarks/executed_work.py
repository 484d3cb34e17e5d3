"""Operations that a forward pass executes, the useless ones included."""

from typing import NamedTuple

from transformer_xl.config import schema
from transformer_xl.model import flops
from transformer_xl.model.encodings import table


class Work(NamedTuple):
  """Operations of one token's forward pass; a training step has three."""

  useful: float  # `flops.forward_flops_per_token`.
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
  useful = flops.forward_flops_per_token(config, **lengths)
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
