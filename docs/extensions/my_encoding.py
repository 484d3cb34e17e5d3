"""Rotary positions in a share of the channels of each head (GPT-NeoX)."""

import jax.numpy as jnp

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
    rows = jnp.moveaxis(rows, axis, -1)
    positions = jnp.moveaxis(positions, axis, -1)
    rates = 10000.0 ** (-jnp.arange(half) / max(half, 1))
    angles = positions.astype(jnp.float32) * rates
    sine = jnp.sin(angles).astype(rows.dtype)
    cosine = jnp.cos(angles).astype(rows.dtype)
    left, right, rest = jnp.split(rows, (half, 2 * half), axis=-1)
    rotated = (left * cosine - right * sine, right * cosine + left * sine, rest)
    return jnp.moveaxis(jnp.concatenate(rotated, axis=-1), -1, axis)
