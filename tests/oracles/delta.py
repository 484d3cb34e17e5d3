"""Hands on a matrix [Dv, Dk] a head, and rows before the convolution."""

import numpy as np

from tests.oracles import cases
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


def work(config, reading, pairs):
  """A token's key reads the matrix of a head, writes it, and a query reads."""
  del reading, pairs
  own = config.delta
  return 3 * config.num_heads * own.key_dim * own.value_dim, {}


CASES = (cases.Case(4, 1, 0, None, {"layers": ("delta",), "pre_norm": True}),)
REST = (
  cases.Case(4, 0, 0, None, {"layers": ("delta", "attention")}),
  cases.Case(
    *(3, 7, 0, None),
    {"layers": ("delta", "delta", "attention"), "num_layers": 3},
  ),
)
VALUES = {"key_dim": (6, 3), "value_dim": (4, 2)}
BLOCKS = {"CHUNK": (2, 3, 64)}
TRANSFER = {"key_dim": "equal", "value_dim": "equal"}
NO_MATRICES = ("convolution",)
SPLITS = {
  "gate": ("fsdp", "tensor"),
  "output": ("tensor", "fsdp"),
  "convolution": (),
}
