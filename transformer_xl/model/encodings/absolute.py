"""Sinusoids of the position in the segment, added to the embeddings.

Vaswani et al. 2017. Scores are products of query and key alone. What memory
holds of a token includes the position that it had in its own segment.
"""

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import none


class Absolute(none.WithoutDistances):
  """Sinusoids added once."""

  counts_from_segment = True

  def embedding_positions(
    self,
    config: schema.ModelConfig,
    first_position: int | jax.Array,
    segment_len: int,
  ) -> shapes.SegmentPositions | None:
    """Sinusoids [T, D] of consecutive positions."""
    index = first_position + jnp.arange(segment_len, dtype=jnp.int32)
    encodings = distances.sinusoids(index.astype(jnp.float32), config.model_dim)
    return encodings.astype(config.dtype)
