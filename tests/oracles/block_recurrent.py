"""A block_recurrent layer's vectors, in float64 NumPy.

What it remembers is the states of the document, the vectors as they were before
its newest segment, None without any, and how long that segment was.
"""

import math
from typing import NamedTuple

import numpy as np


class Past(NamedTuple):
  states: np.ndarray  # [m, D], oldest first.
  vectors: np.ndarray | None
  newest: int


def written(config, own, past, states, norm):
  """The vectors after the newest segment; None if nothing was read yet.

  `states` are those that the layer still has, normalised.
  """
  if not past.newest:
    return None
  shape = (config.block_recurrent.num_vectors, config.model_dim)
  old = np.zeros(shape) if past.vectors is None else past.vectors
  names = norm(old) + own["vectors"]
  tokens = states[-past.newest :]
  added = attend(config, own, "mix", names, names)
  added = added + attend(config, own, "write", names, tokens)
  gate = 1 / (1 + np.exp(-own["gate_bias"]))
  return gate * old + (1 - gate) * (added + own["write_bias"])


def attend(config, own, name, queries, rows):
  """Attention of every query to every row, head by head."""
  width = config.head_dim
  result = []
  for query in queries:
    heads = []
    for head in range(config.num_heads):
      part = slice(head * width, (head + 1) * width)
      q = query @ own[f"{name}_query"][:, part]
      scores = [q @ (row @ own[f"{name}_key"][:, part]) for row in rows]
      weights = np.exp((np.array(scores) - max(scores)) / math.sqrt(width))
      values = rows @ own[f"{name}_value"][:, part]
      heads.append(weights @ values / weights.sum())
    result.append(np.concatenate(heads) @ own[f"{name}_output"])
  return np.stack(result)
