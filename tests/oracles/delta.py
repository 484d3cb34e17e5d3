"""Hands on a matrix [Dv, Dk] a head, and rows before the convolution."""

import numpy as np

from tests.oracles import gates


def read(config, own, rows, state):
  matrices, held = state
  heads, width = config.num_heads, config.delta.key_dim
  ends = [heads * width, 2 * heads * width]
  outputs = []
  for row in rows:
    names = ("query", "key", "value")
    held = [*held, np.concatenate([row @ own[name] for name in names])]
    held = held[-4:]
    taps = own["convolution"][: len(held)]
    mixed = gates.silu(
      sum(x * tap for x, tap in zip(held[::-1], taps, strict=True))
    )
    query, key, value = (
      part.reshape(heads, -1) for part in np.split(mixed, ends)
    )
    step = np.log1p(np.exp(row @ own["step"] + own["step_bias"]))
    alpha = np.exp(-np.exp(own["rate_bias"]) * step)
    beta = gates.sigmoid(row @ own["write"])
    gate = gates.silu(row @ own["gate"]).reshape(heads, -1)
    output = []
    for head in range(heads):
      q, k = (x[head] / np.sqrt(x[head] @ x[head] + 1e-6) for x in (query, key))
      erase = np.eye(width) - beta[head] * np.outer(k, k)
      new = beta[head] * np.outer(value[head], k)
      matrices = {
        **matrices,
        head: alpha[head] * matrices[head] @ erase + new,
      }
      read = matrices[head] @ q / np.sqrt(width)
      root = np.sqrt(np.mean(read**2) + config.layer_norm_epsilon)
      output.append(read / root * own["value_scale"] * gate[head])
    outputs.append(np.concatenate(output) @ own["output"])
  return np.stack(outputs), (matrices, held)


def start(config):
  shape = (config.delta.value_dim, config.delta.key_dim)
  return {head: np.zeros(shape) for head in range(config.num_heads)}, []
