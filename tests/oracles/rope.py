"""Rotations by positions, from their equations."""

import cmath

import numpy as np

from tests.oracles import cases


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


def placed(config, rows):
  scale = config.rope.position_scale
  return rotated(rows, [scale * place for place in range(len(rows))])


ZEROS = cases.ZEROS | {"encoding": "rope"}
CASES = (
  cases.Case(4, 2, 0, "mem_len", ZEROS | {"pre_norm": True}),
  cases.Case(3, 7, 0, None, {"encoding": "rope", "rope.position_scale": 0.3}),
  cases.Case(
    4, 6, 0, "mem_len", ZEROS | {"num_layers": 3, "layers": cases.FEW}
  ),
)
REST = (
  cases.Case(
    *(4, 2, 0, "mem_len"), ZEROS | cases.MODERN | {"feed_forward": "geglu"}
  ),
  # After a document's first segment memory still holds zeros from before it.
  cases.Case(3, 7, 0, "mem_len", ZEROS | {"pre_norm": True}),
  cases.Case(3, 7, 0, None, {"encoding": "rope"}),
)
VALUES = {"position_scale": (0.5, 0.25)}
TRANSFER = {"position_scale": "any"}
NO_SIZES = ("position_scale",)
