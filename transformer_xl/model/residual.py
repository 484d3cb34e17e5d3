"""How the output of a sub-layer joins the residual stream.

"add" is that of the paper. "gru" is the gate of GTrXL, a gated recurrent unit
over depth (Parisotto et al. 2019, section 3.2; docs/specification.md, section
9), which starts close to handing the stream on as it is.

Shapes: B lanes, T tokens, D model width.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense

# What is subtracted from the update gate's logits at first, as published.
UPDATE_BIAS = 2.0


# What joins the stream, the output of a sub-layer and, for dropout, the lanes.
Join = Callable[
  [shapes.Hidden, shapes.Hidden, shapes.Lanes | None], shapes.Hidden
]


def add(
  stream: shapes.Hidden,
  term: shapes.Hidden,
  dropout_lanes: shapes.Lanes | None,
) -> shapes.Hidden:
  """The residual sum of the paper."""
  del dropout_lanes
  return stream + term


def of(config: schema.ModelConfig, name: str) -> Join:
  """The join that `config.residual` names; a gate is the module `name`."""
  return Gate(config, name=name) if config.residual == "gru" else add


class Gate(nn.Module):
  """The gate of GTrXL behind one sub-layer."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self,
    stream: shapes.Hidden,
    term: shapes.Hidden,
    dropout_lanes: shapes.Lanes | None,
  ) -> shapes.Hidden:
    """The stream behind the sub-layer whose output is `term`."""
    width = self.config.model_dim

    def projected(name: str, rows: jax.Array, num_gates: int) -> jax.Array:
      kernel = parameters.matrix(
        self,
        f"{name}_kernel",
        (width, num_gates * width),
        split="inputs",
        dropout_lanes=dropout_lanes,
      )
      return dense.times(rows, kernel)

    from_term = projected("term", nn.relu(term), 3)
    from_stream = projected("stream", stream, 2)
    reset_term, update_term, new_term = jnp.split(from_term, 3, axis=2)
    reset_stream, update_stream = jnp.split(from_stream, 2, axis=2)
    start = nn.initializers.constant(UPDATE_BIAS)
    bias = self.param("update_bias", start, (width,), jnp.float32)
    reset = nn.sigmoid(reset_term + reset_stream)
    update = nn.sigmoid(
      update_term + update_stream - bias.astype(stream.dtype)[None, None]
    )
    new = jnp.tanh(new_term + projected("new", reset * stream, 1))
    return (1 - update) * stream + update * new


def flops(config: schema.ModelConfig) -> int:
  """Operations of both gates of one layer for a token."""
  num_matrices = 0 if config.residual == "add" else 6
  return 2 * 2 * num_matrices * config.model_dim**2
