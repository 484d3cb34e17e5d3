"""Rotary positions in a share of the channels of each head (GPT-NeoX)."""

import jax.numpy as jnp
import numpy as np

from transformer_xl import extend


@extend.encoding("partial_rope")
class PartialRope(extend.Encoding):
  """Products of queries and keys whose first channels are rotated."""

  class Fields(extend.Fields):
    """How `partial_rope` rotates."""

    share: float = extend.field(0.5, "in (0, 1]")
    """Share of the channels that are rotated."""

  def placed(self, config, rows, positions, *, axis=-1):
    half = int(config.head_dim * config.own(PartialRope.Fields).share) // 2
    frequencies = 10000.0 ** (-np.arange(half) / max(half, 1))
    # Exact at any position, which a product in float32 is not.
    angles = extend.rotary_angles(positions, frequencies, axis=axis)
    turned, rest = jnp.split(rows, [2 * half], axis=axis)
    turned = extend.rotated(turned, angles, axis=axis)
    return jnp.concatenate([turned, rest], axis=axis)
