"""Rotary position embedding (Su et al. 2021).

Queries and keys are rotated by angles proportional to their positions, so that
their product depends on the difference of the positions alone. Any origin
serves: a window counts from its oldest token and the ring from the first token
that was read, so that a key is rotated once, when it is written, and stays as
it is. `model.position_scale` scales positions, and angles with them, so that a
longer window than in training has no larger differences (position
interpolation, Chen et al. 2023, equation 4).
"""

import jax

from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import none


class Rope(none.WithoutDistances):
  """Products of rotated queries and rotated keys."""

  def placed(
    self,
    config: schema.ModelConfig,
    rows: jax.Array,
    positions: jax.Array,
    *,
    axis: int = -1,
  ) -> jax.Array:
    """Rotates rows of any shape by the angles of their positions."""
    angles = distances.rotary_angles(
      positions, config.head_dim, scale=config.position_scale, axis=axis
    )
    return distances.rotated(rows, angles, axis=axis)
