"""Learned keys of distances (Shaw et al. 2018).

Scores have two terms: query and key, query and distance. Every layer learns
keys of `num_positions` distances; larger distances share the last one.
"""

import flax.linen as nn

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


@registry.encodings.register("shaw")
class Shaw(encoding.Encoding):
  """One learned vector for each distance, head and layer."""

  has_table = True
  score_products = 3

  def distance_terms(
    self,
    module: nn.Module,
    project: parameters.Projections,
    positions: shapes.Positions | None,
    num_keys: int,
    biases: shapes.BiasPair | None,
  ) -> scores.DistanceTerms:
    """Rows of the layer's table, without biases."""
    del project, positions, biases
    config = module.config
    shape = (config.num_positions, config.num_heads * config.head_dim)
    table = parameters.matrix(module, "distances", shape)
    rows = distances.clipped_rows(table, num_keys)
    keys = rows.reshape(num_keys, config.num_heads, config.head_dim)
    return scores.DistanceTerms(keys)
