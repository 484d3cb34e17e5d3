"""Hands on weights and momentum of each head, and rows before the convolution.

The gradient is that of differences of the loss.
"""

import numpy as np

from tests.oracles import cases
from tests.oracles import gates


def answer(weights, row):
  first, second = weights
  return gates.silu(row @ first) @ second


def gradient(weights, key, value):
  """The gradient of the squared distance, by central differences."""

  def loss(moved):
    return np.sum((answer(moved, key) - value) ** 2)

  size = 1e-6
  found = []
  for index, matrix in enumerate(weights):
    slope = np.zeros_like(matrix)
    for place in np.ndindex(*matrix.shape):
      ends = []
      for sign in (1, -1):
        moved = [part.copy() for part in weights]
        moved[index][place] += sign * size
        ends.append(loss(moved))
      slope[place] = (ends[0] - ends[1]) / (2 * size)
    found.append(slope)
  return found


def read(config, own, rows, state):
  memories, held = state
  heads, width = config.num_heads, config.titans.key_dim
  ends = [heads * width, 2 * heads * width]
  outputs = []
  for row in rows:
    names = ("query", "key", "value")
    held = [*held, np.concatenate([row @ own[name] for name in names])][-4:]
    total = sum(
      x * tap for x, tap in zip(held[::-1], own["convolution"], strict=False)
    )
    query, key, value = (
      part.reshape(heads, -1) for part in np.split(gates.silu(total), ends)
    )
    rate, forget, keep = (
      gates.sigmoid(row @ own[name] + own[f"{name}_bias"])
      for name in ("rate", "forget", "momentum")
    )
    gate = gates.silu(row @ own["gate"]).reshape(heads, -1)
    output = []
    for head in range(heads):
      q, k = (x[head] / np.sqrt(x[head] @ x[head] + 1e-6) for x in (query, key))
      start = [own["first"][head], own["second"][head]]
      weights, momentum = memories.get(head, (start, [0, 0]))
      slopes = gradient(weights, k, value[head])
      bounded = [slope / np.sqrt(1 + np.sum(slope**2)) for slope in slopes]
      momentum = [
        keep[head] * old - rate[head] * by
        for old, by in zip(momentum, bounded, strict=True)
      ]
      weights = [
        (1 - forget[head]) * old + by
        for old, by in zip(weights, momentum, strict=True)
      ]
      memories = {**memories, head: (weights, momentum)}
      found = answer(weights, q)
      root = np.sqrt(np.mean(found**2) + config.layer_norm_epsilon)
      output.append(found / root * own["value_scale"] * gate[head])
    outputs.append(np.concatenate(output) @ own["output"])
  return np.stack(outputs), (memories, held)


def start(config):
  """Networks are those of the parameters until a token has taught them."""
  del config
  return {}, []


def work(config, reading, pairs):
  """How often a token multiplies with the matrices of its lane's networks.

  A key asks both, the error comes back through the second, both get a product,
  and a query asks both.
  """
  del config, reading, pairs
  return 0, {"first": 3, "second": 4}


CASES = (cases.Case(4, 1, 0, None, {"layers": ("titans",), "pre_norm": True}),)
REST = (
  cases.Case(4, 0, 0, None, {"layers": ("attention", "titans")}),
  cases.Case(
    *(3, 7, 0, None),
    {"layers": ("titans", "titans", "attention"), "num_layers": 3},
  ),
)
VALUES = {"key_dim": (6, 3), "value_dim": (4, 2), "hidden_dim": (5, 3)}
TRANSFER = {
  "key_dim": "equal",
  "value_dim": "equal",
  "hidden_dim": "equal",
}
NO_MATRICES = ("convolution",)
SPLITS = {
  "gate": ("fsdp", "tensor"),
  "output": ("tensor", "fsdp"),
  "convolution": (),
  "first": (),
}
