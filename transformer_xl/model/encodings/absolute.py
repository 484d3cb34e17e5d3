"""Sinusoids of the position in the segment, added to the embeddings.

Vaswani et al. 2017. Scores are products of query and key alone. What memory
holds of a token includes the position that it had in its own segment.
"""

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


@registry.encodings.register("absolute")
class Absolute(encoding.Encoding):
  """Sinusoids added once."""

  counts_from_segment = True

  def embedding_positions(
    self,
    config: schema.ModelConfig,
    first_position: jax.Array | None,
    segment_len: int,
  ) -> shapes.SegmentPositions | None:
    """Sinusoids [T, D] of consecutive positions."""
    index = jnp.arange(segment_len, dtype=jnp.int32)
    if first_position is not None:
      index = index + first_position
    encodings = distances.sinusoids(index.astype(jnp.float32), config.model_dim)
    return encodings.astype(config.dtype)
