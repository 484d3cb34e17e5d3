"""Losses of a tail cluster, computed only for its own tokens if they fit."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import mesh
from transformer_xl import shapes

_ROWS = 16  # Rows of a bfloat16 tile on TPU.


def tail_losses(
  tail: Callable[..., jax.Array],
  hidden: shapes.Hidden,
  local: shapes.Tokens,
  inside: jt.Bool[shapes.Array, "B T"],
  *,
  capacity: float,
) -> shapes.Losses:
  """Losses of a tail cluster, computed for fewer tokens if few are inside.

  `tail` computes the losses of any number of tokens from their states, their
  targets counted within the cluster, and whether those are inside; 0 otherwise.

  Each device has room for `capacity`, a share of its own tokens, so no token
  moves to another. Tokens are picked by products with one-hot rows, whose
  gradients are products too; that of a gather is a scatter, slow on TPU.
  """
  lanes, segment_len = inside.shape
  groups = mesh.lane_groups(lanes)
  tokens = lanes // groups * segment_len
  room = math.ceil(capacity * tokens / _ROWS) * _ROWS
  if 2 * room > tokens:
    return tail(hidden, local, inside)
  inside = inside.reshape(groups, tokens)
  rank = jnp.cumsum(inside, axis=1) - 1
  slots = rank[:, :, None] == jnp.arange(room)[None, None]
  slots &= inside[:, :, None]  # [G, tokens, room]

  def for_picked(hidden: jax.Array, local: jax.Array) -> jax.Array:
    """Losses [G, tokens], computed in the slots that there is room for."""
    flat = hidden.reshape(groups, tokens, -1)
    picked = jnp.einsum(
      "gnr,gnd->grd",
      slots.astype(flat.dtype),
      flat,
      precision=jax.lax.Precision.HIGHEST,  # To pick without rounding.
    )
    local = local.reshape(groups, tokens, 1)
    local = jnp.sum(jnp.where(slots, local, 0), axis=1)
    # The logits are cheaper to compute twice than to keep.
    policy = jax.checkpoint_policies.save_only_these_names("normaliser")
    tail_again = jax.checkpoint(tail, policy=policy)
    losses = tail_again(picked, local, jnp.any(slots, axis=1))
    return jnp.sum(jnp.where(slots, losses[:, None], 0.0), axis=2)

  def for_all(hidden: jax.Array, local: jax.Array) -> jax.Array:
    """Losses [G, tokens], computed for all tokens."""
    by_lane = (groups, lanes // groups, segment_len)
    # A lane of each device at a time, twice: logits of all would not fit.
    losses = jax.lax.map(
      jax.checkpoint(lambda lane: tail(*lane)),
      tuple(
        jnp.moveaxis(array.reshape(*by_lane, *array.shape[2:]), 1, 0)
        for array in (hidden, local, inside)
      ),
    )
    return jnp.moveaxis(losses, 0, 1).reshape(groups, tokens)

  fits = jnp.all(rank[:, -1] < room)
  losses = jax.lax.cond(fits, for_picked, for_all, hidden, local)
  return losses.reshape(lanes, segment_len)
