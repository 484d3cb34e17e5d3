"""Encodings younger than the paper, in float64 NumPy, from their equations."""

import cmath

import numpy as np


def alibi_slope(head: int, num_heads: int) -> float:
  """The slope of a head (Press et al. 2021, section 3).

  "For models with 8 heads, the slopes that we use are the geometric sequence
  1/2, 1/4, ..., 1/256", and for n heads one that starts at 2^(-8/n) with that
  ratio. For other numbers than powers of two, the authors' program takes the
  slopes of the power p below and then the first, third, fifth, ... of 2 p.
  """
  power = 1
  while power * 2 <= num_heads:
    power *= 2
  if head < power:
    return (2 ** (-8 / power)) ** (head + 1)
  return (2 ** (-4 / power)) ** (2 * (head - power) + 1)


def rope(rows: np.ndarray, positions) -> np.ndarray:
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
