"""The part of a layer that maps each position by itself.

"relu" is that of the paper: two dense layers with a ReLU between them. "swiglu"
and "geglu" multiply a second projection of the input by a gate (Shazeer 2020,
equation 6), without biases:

    (activation(x W) * x V) W2

with SiLU or GELU as the activation. At equal `ff_dim` they have half as many
parameters again.

Shapes: B lanes, T tokens, D model width, F `ff_dim`.
"""

import flax.linen as nn
import jax

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense

# What gates the second projection; "relu" has none.
_GATES = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu}


class FeedForward(nn.Module):
  """The feed-forward part of one layer, with dropout after each projection."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self, hidden: shapes.Hidden, dropout_lanes: shapes.Lanes | None
  ) -> shapes.Hidden:
    """Maps each position of [B, T, D] by itself."""
    config = self.config
    dropout = dropout_lib.of_states(config)
    is_gated = config.feed_forward in _GATES

    def projected(
      name: str, rows: jax.Array, width: int, split: str
    ) -> jax.Array:
      """The product with a matrix, and in ungated layers a bias."""
      shape = (rows.shape[-1], width)
      kernel = parameters.matrix(
        self,
        f"{name}_kernel",
        shape,
        split=split,
        dropout_lanes=dropout_lanes,
      )
      result = dense.times(rows, kernel)
      if is_gated:
        return result
      of_bias = "features" if split == "columns" else "whole"
      bias = parameters.vector(self, f"{name}_bias", width, split=of_bias)
      return dense.plus(result, bias)

    inner = projected("in", hidden, config.ff_dim, "columns")
    if is_gated:
      gate = projected("gate", hidden, config.ff_dim, "columns")
      inner = dropout(
        _GATES[config.feed_forward](gate) * inner, dropout_lanes=dropout_lanes
      )
    else:
      inner = dropout(inner, dropout_lanes=dropout_lanes, relu=True)
    output = projected("out", inner, config.model_dim, "rows")
    return dropout(output, dropout_lanes=dropout_lanes)


def flops(config: schema.ModelConfig) -> int:
  """Operations of one layer for a token, two for each multiply-add."""
  num_matrices = 3 if config.feed_forward in _GATES else 2
  return num_matrices * 2 * config.model_dim * config.ff_dim
