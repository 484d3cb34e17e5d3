"""What a memorizing layer retrieves, in float64 NumPy, query after query."""

import math

import numpy as np


def mix(config, own, near, query, key, value, *, window):
  """Near values [T, H, d], mixed with what each query and head retrieves.

  `query`, `key` and `value` are [m + T, H, d], m states before the segment.
  """
  length = len(near)
  result = near.copy()
  for head in range(config.num_heads):
    gate = 1 / (1 + math.exp(-own["gate_bias"][head]))
    for i in range(length):
      place = len(key) - length + i
      far = [
        (query[place, head] @ key[j, head] / math.sqrt(config.head_dim), j)
        for j in range(place)
        if config.memorizing.window < place - j <= window
      ]
      if not far:
        continue
      best = sorted(far, reverse=True)[: config.memorizing.top_k]
      weights = np.exp([score - best[0][0] for score, _ in best])
      values = value[[j for _, j in best], head]
      retrieved = weights @ values / weights.sum()
      result[i, head] = gate * retrieved + (1 - gate) * near[i, head]
  return result
