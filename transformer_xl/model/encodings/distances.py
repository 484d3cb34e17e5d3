"""Functions of distances and positions that encodings share."""

import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


def sinusoids(
  distances: jt.Float[shapes.Array, "R"], model_dim: int
) -> jt.Float[shapes.Array, "R D"]:
  """Encodings of distances: all sines, then all cosines (Vaswani et al. 2017).

  The published code joins the two blocks and does not interleave them.
  """
  channels = jnp.arange(0, model_dim, 2, dtype=jnp.float32)
  frequencies = 10000.0 ** (-channels / model_dim)
  angles = distances[:, None] * frequencies[None, :]
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def position_encodings(
  context_len: int, model_dim: int, *, clamp_len: int
) -> shapes.Positions:
  """Encodings of the distances K-1 down to 0, one row each.

  With a positive `clamp_len`, all larger distances share its encoding.
  """
  distances = jnp.arange(context_len - 1, -1, -1, dtype=jnp.float32)
  if clamp_len > 0:
    distances = jnp.minimum(distances, clamp_len)
  return sinusoids(distances, model_dim)


def clipped_rows(
  table: jt.Float[shapes.Array, "R E"], context_len: int
) -> jt.Float[shapes.Array, "K E"]:
  """Learned rows of the distances K-1 to 0; the last is for all beyond."""
  distance = jnp.arange(context_len - 1, -1, -1, dtype=jnp.int32)
  return table[jnp.minimum(distance, table.shape[0] - 1)]
