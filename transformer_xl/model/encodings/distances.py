"""Functions of distances and positions that encodings share."""

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import hardware
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
  num_keys: int, model_dim: int, *, clamp_len: int
) -> shapes.Positions:
  """Encodings of the distances K-1 down to 0, one row each.

  With a positive `clamp_len`, all larger distances share its encoding.
  """
  distances = jnp.arange(num_keys - 1, -1, -1, dtype=jnp.float32)
  if clamp_len > 0:
    distances = jnp.minimum(distances, clamp_len)
  return sinusoids(distances, model_dim)


def clipped_rows(
  table: jt.Float[shapes.Array, "R E"], num_keys: int
) -> jt.Float[shapes.Array, "K E"]:
  """Rows of a learned table for the distances K-1 to 0.

  Larger distances than the table has share its last row.
  """
  distance = jnp.arange(num_keys - 1, -1, -1, dtype=jnp.int32)
  return table[jnp.minimum(distance, table.shape[0] - 1)]


def rotary_frequencies(head_dim: int, base: float = 10000.0) -> np.ndarray:
  """Radians a token, [Dh / 2], of the pairs of channels (Su et al. 2021)."""
  return base ** (-np.arange(0, head_dim, 2) / head_dim)


def rotary_angles(
  positions: jt.Int[shapes.Array, "..."],
  frequencies: np.ndarray,
  *,
  axis: int = -1,
) -> jt.Float[shapes.Array, "..."]:
  """Angles of the pairs of channels, from -pi to pi.

  `positions` has a single channel on `axis`, and the result Dh / 2. The
  frequencies are in radians a token.

  A full turn is 2^32 units, so that integers overflow where angles repeat.
  Until they become floats, differences are exact at any position, and a
  position may overflow as well. A frequency is rounded by 7e-10 radians a token
  at most.
  """
  units = np.round(frequencies / (2 * np.pi) * 2**32).astype(np.int64)
  shape = [1] * positions.ndim
  shape[axis] = -1
  steps = jnp.asarray(units.astype(np.int32).reshape(shape))
  turns = positions.astype(jnp.int32) * steps
  return turns.astype(jnp.float32) * np.float32(2 * np.pi / 2**32)


def rotated(
  rows: jt.Float[shapes.Array, "..."],
  angles: jt.Float[shapes.Array, "..."],
  *,
  axis: int = -1,
) -> jt.Float[shapes.Array, "..."]:
  """Rotates the channels k and k + Dh / 2 of `axis` in their plane, in float32.

  `angles` have half the channels and broadcast against half of `rows`.
  """
  if axis == -1 and hardware.device_kind().startswith("TPU"):
    return _rotated_by_product(rows, angles)
  first, second = jnp.split(rows.astype(jnp.float32), 2, axis=axis)
  cosine = jnp.cos(angles)
  sine = jnp.sin(angles)
  if hardware.is_cpu():
    cosine = _held(cosine, axis=axis)
    sine = _held(sine, axis=axis)
  turned = (first * cosine - second * sine, second * cosine + first * sine)
  return jnp.concatenate(turned, axis=axis).astype(rows.dtype)


def _held(
  table: jt.Float[shapes.Array, "..."], *, axis: int
) -> jt.Float[shapes.Array, "..."]:
  """The same numbers, which XLA computes before the rotation.

  Within the rotation a CPU would compute each again for every head. XLA on CPU
  does not join a matrix product with what reads it; a barrier it drops. The
  product is exact, also where a program that was exported here runs on a TPU.
  """
  rows = jnp.moveaxis(table, axis, -1)
  same = jnp.matmul(
    rows,
    jnp.eye(rows.shape[-1], dtype=rows.dtype),
    precision=jax.lax.Precision.HIGHEST,
  )
  return jnp.moveaxis(same, -1, axis)


def _rotated_by_product(rows: jax.Array, angles: jax.Array) -> jax.Array:
  """Rotates as `rotated` does, but lets the matrix units move channels.

  XLA on TPU moves channels between the lanes of a register four times as
  slowly. A product with a matrix of 0, 1 and -1 is exact.
  """
  width = rows.shape[-1]
  swap = np.roll(np.eye(width), width // 2, axis=1)
  swap[width // 2 :] *= -1  # [first, second] to [-second, first].
  is_wide = rows.dtype == jnp.float32
  moved = jnp.einsum(
    "...d,de->...e",
    rows,
    jnp.asarray(swap, rows.dtype),
    precision=jax.lax.Precision.HIGHEST if is_wide else None,
    preferred_element_type=jnp.float32,
  )
  cosine = jnp.cos(angles)
  sine = jnp.sin(angles)
  cosine = jnp.concatenate([cosine, cosine], axis=-1)
  sine = jnp.concatenate([sine, sine], axis=-1)
  turned = rows.astype(jnp.float32) * cosine + moved * sine
  return turned.astype(rows.dtype)
