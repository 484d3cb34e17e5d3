"""Relative sinusoidal encodings (Dai et al. 2019, section 3.3).

Scores have four terms: query and key, query and distance, u and key, v and
distance. Keys of distances are projected sinusoids.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


class Relative(encoding.Encoding):
  """The encoding of Transformer-XL."""

  clamps = True
  is_published = True
  projects_distances = True

  def shared_biases(self, module: Any) -> shapes.BiasPair | None:
    """u and v in the model, unless every layer has its own."""
    return None if module.config.untie_biases else _biases(module)

  def layer_biases(self, module: Any) -> shapes.BiasPair | None:
    """u and v of one layer."""
    return _biases(module)

  def positions(
    self, config: schema.ModelConfig, context_len: int, *, clamp_len: int
  ) -> shapes.Positions | None:
    """Sinusoids of the distances."""
    return distances.position_encodings(
      context_len, config.model_dim, clamp_len=clamp_len
    ).astype(config.dtype)

  def distance_keys(
    self,
    module: Any,
    positions: shapes.Positions | None,
    context_len: int,
    *,
    deterministic: bool,
  ) -> shapes.PositionKeys | None:
    """Projected sinusoids, with a kernel for each layer."""
    del context_len
    assert positions is not None
    return parameters.project(
      module, "position", positions, deterministic=deterministic
    )


def _biases(module) -> shapes.BiasPair:
  config = module.config
  init = nn.initializers.normal(config.init_std)
  shape = (config.num_heads, config.head_dim)
  return (
    module.param("content_bias", init, shape, jnp.float32),
    module.param("position_bias", init, shape, jnp.float32),
  )
