"""Rotations by positions, from their equations."""

import cmath

import numpy as np

from tests.oracles import cases


def rotated(rows: np.ndarray, positions, base=10000, slowed=float):
  """Rows [R, H, d] at their positions (Su et al. 2021, equations 12 to 15).

  A pair of channels is one complex number, multiplied by e^(i m theta_k) with
  theta_k = base^(-2k/d), or what `slowed` makes of it. Pair k has the channels
  k and k + d/2.
  """
  half = rows.shape[-1] // 2
  result = np.empty(rows.shape)
  for row, position in enumerate(positions):
    for k in range(half):
      theta = slowed(base ** (-2 * k / rows.shape[-1]))
      pairs = rows[row, :, k] + 1j * rows[row, :, k + half]
      turned = pairs * cmath.exp(1j * position * theta)
      result[row, :, k] = turned.real
      result[row, :, k + half] = turned.imag
  return result


def placed(config, rows):
  own = config.rope

  def slowed(theta: float) -> float:
    """Llama 3.1: by wavelengths, where it was published."""
    wavelength = 2 * np.pi / theta
    if wavelength < own.original_len / own.high_turns:
      return theta
    if wavelength > own.original_len / own.low_turns:
      return theta / own.long_factor
    smooth = own.original_len / wavelength - own.low_turns
    smooth /= own.high_turns - own.low_turns
    return (1 - smooth) * theta / own.long_factor + smooth * theta

  places = [own.position_scale * place for place in range(len(rows))]
  return rotated(rows, places, own.base, slowed)


ZEROS = cases.ZEROS | {"encoding": "rope"}
# Frequencies of the four pairs of channels on both sides and in between.
SLOWED = {
  **{"rope.base": 500.0, "rope.long_factor": 8.0, "rope.original_len": 40},
  "head_dim": 8,
}
CASES = (
  cases.Case(4, 2, 0, "mem_len", ZEROS | {"pre_norm": True}),
  cases.Case(3, 7, 0, None, {"encoding": "rope", "rope.position_scale": 0.3}),
  cases.Case(
    4, 6, 0, "mem_len", ZEROS | {"num_layers": 3, "layers": cases.FEW}
  ),
  cases.Case(*(4, 6, 0, None), {"encoding": "rope", **SLOWED}),
)
REST = (
  cases.Case(
    *(4, 2, 0, "mem_len"), ZEROS | cases.MODERN | {"feed_forward": "geglu"}
  ),
  # After a document's first segment memory still holds zeros from before it.
  cases.Case(3, 7, 0, "mem_len", ZEROS | {"pre_norm": True}),
  cases.Case(3, 7, 0, None, {"encoding": "rope"}),
)
VALUES = {
  "position_scale": (0.5, 0.25),
  "base": (500.0, 20.0),
  "long_factor": (2.0, 8.0),
  "low_turns": (0.5, 2.0),
  "high_turns": (3.0, 8.0),
  "original_len": (16, 64),
}
TRANSFER = dict.fromkeys(VALUES, "equal") | {"position_scale": "any"}
NO_SIZES = tuple(VALUES)
