"""Rotations by positions, from their equations."""

import cmath

import numpy as np


def rotated(rows: np.ndarray, positions) -> np.ndarray:
  """Rows [R, H, d] at their positions (Su et al. 2021, equations 12 to 15).

  A pair of channels is one complex number, multiplied by e^(i m theta_k) with
  theta_k = 10000^(-2k/d). Pair k has the channels k and k + d/2.
  """
  half = rows.shape[-1] // 2
  result = np.empty(rows.shape)
  for row, position in enumerate(positions):
    for k in range(half):
      theta = 10000 ** (-2 * k / rows.shape[-1])
      pairs = rows[row, :, k] + 1j * rows[row, :, k + half]
      turned = pairs * cmath.exp(1j * position * theta)
      result[row, :, k] = turned.real
      result[row, :, k + half] = turned.imag
  return result
