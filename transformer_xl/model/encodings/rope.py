"""Rotary position embedding (Su et al. 2021).

Queries and keys are rotated by angles proportional to their positions, so that
their product depends on the difference of the positions alone. Any origin
serves: a window counts from its oldest token and the ring from the first token
that was read, so that a key is rotated once, when it is written, and stays as
it is. `position_scale` scales positions, and angles with them, so that a
longer window than in training has no larger differences (position
interpolation, Chen et al. 2023, equation 4). Llama 3.1 divides the slow
frequencies alone, by `long_factor`: those that turn at most `low_turns` times
in `original_len` tokens, and not those that turn `high_turns` times; in
between it interpolates.
"""

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding


@registry.encodings.register("rope")
class Rope(encoding.Encoding):
  """Products of rotated queries and rotated keys."""

  class Fields(fields.Group):
    """How `rope` counts positions."""

    base: float = fields.field(10000.0, "above 0")
    """The slowest pair of channels turns this many times more slowly than the
    first, nearly."""
    position_scale: float = fields.field(1.0, "in (0, 1]", transfer="any")
    """Factor on the positions; below 1, a longer memory than in training has no
    larger distances (docs/memory.md)."""
    long_factor: float = fields.field(1.0, "at least 1")
    """Divisor of the slow frequencies, as in Llama 3.1."""
    low_turns: float = fields.field(1.0, "above 0")
    """Frequencies that turn so often in original_len, or less, are slow."""
    high_turns: float = fields.field(4.0, "above 0")
    """Frequencies that turn so often in original_len, or more, are fast."""
    original_len: int = fields.field(8192, "at least 1")
    """Tokens in which turns are counted for long_factor."""

  rotates = True

  @staticmethod
  def check(config: schema.ModelConfig) -> None:
    """Refuses slow frequencies that turn more often than fast ones."""
    own = config.own(Rope.Fields)
    if own.low_turns >= own.high_turns:
      raise errors.UserError(
        f"model.rope.low_turns={own.low_turns:g} must be below "
        f"model.rope.high_turns={own.high_turns:g}."
      )

  def placed(
    self,
    config: schema.ModelConfig,
    rows: jax.Array,
    positions: jax.Array,
    *,
    axis: int = -1,
  ) -> jax.Array:
    """Rotates rows of any shape by the angles of their positions."""
    frequencies = _frequencies(config.own(Rope.Fields), config.head_dim)
    angles = distances.rotary_angles(positions, frequencies, axis=axis)
    return distances.rotated(rows, angles, axis=axis)


def _frequencies(own: Rope.Fields, head_dim: int) -> np.ndarray:
  """Radians a token of each pair of channels, [Dh / 2]."""
  frequencies = distances.rotary_frequencies(head_dim, own.base)
  turns = own.original_len * frequencies / (2 * np.pi)
  # 1 for fast frequencies, 0 for slow ones.
  fast = (turns - own.low_turns) / (own.high_turns - own.low_turns)
  fast = np.clip(fast, 0, 1)
  scaled = frequencies * (fast + (1 - fast) / own.long_factor)
  return scaled * own.position_scale
