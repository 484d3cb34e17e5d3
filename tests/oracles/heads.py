"""Heads of queries and keys, and vectors of places."""

import math

import numpy as np


def split(config, rows):
  """Rows [..., H', Dh] as [..., H, Dh].

  Every group of heads of queries reads the same head of keys.
  """
  projected = rows.reshape(*rows.shape[:-1], -1, config.head_dim)
  size = config.num_heads // projected.shape[-2]
  sources = [head // size for head in range(config.num_heads)]
  return projected[..., sources, :]


def sinusoids(distance: int, model_dim: int, clamp_len: int) -> np.ndarray:
  """sin and then cos of distance * 10000^(-2k/D), [D]."""
  if clamp_len > 0:
    distance = min(distance, clamp_len)
  half = range(model_dim // 2)
  angles = [distance * 10000 ** (-2 * k / model_dim) for k in half]
  return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
