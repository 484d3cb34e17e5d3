"""Learned vectors of the position in the segment, added to every layer.

Al-Rfou et al. 2018. Scores are products of query and key alone. The inputs of
a layer that memory holds include these vectors.
"""

import flax.linen as nn
import jax

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model.encodings import encoding


@registry.encodings.register("absolute_per_layer")
class AbsolutePerLayer(encoding.Encoding):
  """A table of `num_positions` vectors for each layer."""

  has_table = True
  counts_from_segment = True

  def layer_positions(
    self,
    module: nn.Module,
    first_position: jax.Array | None,
    segment_len: int,
  ) -> shapes.SegmentPositions | None:
    """Consecutive rows of the layer's table, [T, D]."""
    config = module.config
    self.check_segment_len(config, segment_len)
    shape = (config.num_positions, config.model_dim)
    table = parameters.matrix(module, "positions", shape)
    if first_position is None:
      return table[:segment_len]
    return jax.lax.dynamic_slice_in_dim(table, first_position, segment_len)

  def check_segment_len(
    self, config: schema.ModelConfig, segment_len: int
  ) -> None:
    """Raises a UserError for a segment longer than the table."""
    if segment_len > config.num_positions:
      raise errors.UserError(
        f"the model has learned {config.num_positions} positions and cannot "
        f"read a segment of {segment_len}; use shorter segments, or train with "
        f"--config.model.num_positions={segment_len}."
      )
