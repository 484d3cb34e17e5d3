"""Rotary position embedding (Su et al. 2021).

Queries and keys are rotated by angles proportional to their positions, so that
their product depends on the difference of the positions alone. Any origin
serves: a window counts from its oldest token and the ring from the first token
that was read, so that a key is rotated once, when it is written, and stays as
it is. `position_scale` scales positions, and angles with them, so that a
longer window than in training has no larger differences (position
interpolation, Chen et al. 2023, equation 4).
"""

import jax

from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import none


@registry.encodings.register("rope")
class Rope(none.WithoutDistances):
  """Products of rotated queries and rotated keys."""

  class Fields(fields.Group):
    """How `rope` counts positions."""

    position_scale: float = fields.field(1.0, "in (0, 1]", transfer="any")
    """Factor on the positions; below 1, a longer memory than in training has no
    larger distances (docs/memory.md)."""

  rotates = True

  def placed(
    self,
    config: schema.ModelConfig,
    rows: jax.Array,
    positions: jax.Array,
    *,
    axis: int = -1,
  ) -> jax.Array:
    """Rotates rows of any shape by the angles of their positions."""
    scale = config.own(Rope.Fields).position_scale
    angles = distances.rotary_angles(
      positions, config.head_dim, scale=scale, axis=axis
    )
    return distances.rotated(rows, angles, axis=axis)
