"""Learned keys of distances (Shaw et al. 2018).

Scores have two terms: query and key, query and distance. Every layer learns
keys of `num_positions` distances; larger distances share the last one.
"""

from typing import Any

import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.model import parameters
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


class Shaw(encoding.Encoding):
  """One learned vector for each distance, head and layer."""

  def layer_biases(self, module: Any) -> shapes.BiasPair | None:
    """Zeros: the kernels add biases, and this encoding has none."""
    zeros = jnp.zeros((module.config.num_heads, module.config.head_dim))
    return zeros, zeros

  def distance_keys(
    self,
    module: Any,
    positions: shapes.Positions | None,
    context_len: int,
    *,
    deterministic: bool,
  ) -> shapes.PositionKeys | None:
    """Rows of the layer's table."""
    del positions, deterministic
    config = module.config
    shape = (config.num_positions, config.num_heads * config.head_dim)
    table = parameters.kernel(module, "distances", shape)
    rows = distances.clipped_rows(table, context_len)
    return rows.reshape(context_len, config.num_heads, config.head_dim)
