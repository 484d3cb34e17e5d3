"""Relative sinusoidal encodings (Dai et al. 2019, section 3.3).

Scores have four terms: query and key, query and distance, u and key, v and
distance. Keys of distances are projected sinusoids.
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


class Sinusoidal(encoding.Encoding):
  """An encoding whose keys of distances are projected sinusoids."""

  clamps = True
  score_products = 3

  def positions(
    self, config: schema.ModelConfig, num_keys: int, *, clamp_len: int
  ) -> shapes.Positions | None:
    """Sinusoids of the distances."""
    return distances.position_encodings(
      num_keys, config.model_dim, clamp_len=clamp_len
    ).astype(config.dtype)


@registry.encodings.register("relative")
class Relative(Sinusoidal):
  """The encoding of Transformer-XL."""

  def shared_biases(self, module: nn.Module) -> shapes.BiasPair | None:
    """u and v in the model, unless every layer has its own."""
    return None if module.config.untie_biases else _biases(module, "whole")

  def layer_biases(self, module: nn.Module) -> shapes.BiasPair | None:
    """u and v as parameters of one layer."""
    return _biases(module, "features")

  def distance_terms(
    self,
    module: nn.Module,
    project: parameters.Projections,
    positions: shapes.Positions | None,
    num_keys: int,
    biases: shapes.BiasPair | None,
  ) -> scores.DistanceTerms:
    """Sinusoids projected by a kernel of each layer; u and v are learned."""
    del module, num_keys
    assert positions is not None
    assert biases is not None
    # The published programs have no dropout here.
    keys = project("position", positions, drops=False)
    return scores.DistanceTerms(keys, biases)


def _biases(module: nn.Module, split: str) -> shapes.BiasPair:
  config = module.config
  normal = nn.initializers.normal(config.init_std)
  init = parameters.with_split(normal, split)
  shape = (config.num_heads, config.head_dim)
  return (
    module.param("content_bias", init, shape, jnp.float32),
    module.param("position_bias", init, shape, jnp.float32),
  )
