"""Hands on states [N, P] of each head, and rows before the convolution."""

import numpy as np

from tests.oracles import cases
from tests.oracles import gates


def read(config, own, rows, state):
  states, held = state
  heads = config.num_heads
  size = config.mamba2.state_dim
  outputs = []
  for row in rows:
    names = ("value", "key", "query")
    held = [*held, np.concatenate([row @ own[name] for name in names])][-4:]
    total = own["convolution_bias"]
    for tap, earlier in zip(own["convolution"], held[::-1], strict=False):
      total = total + tap * earlier
    mixed = gates.silu(total)
    values = mixed[: -2 * size].reshape(heads, -1)
    key, query = mixed[-2 * size : -size], mixed[-size:]
    step = np.log1p(np.exp(row @ own["step"] + own["step_bias"]))
    alpha = np.exp(-np.exp(own["rate_bias"]) * step)
    output = []
    for head in range(heads):
      new = step[head] * np.outer(key, values[head])
      states = {**states, head: alpha[head] * states[head] + new}
      read = query @ states[head]
      output.append(read + own["skip_scale"][head] * values[head])
    gated = np.concatenate(output) * gates.silu(row @ own["gate"])
    root = np.sqrt(np.mean(gated**2) + config.layer_norm_epsilon)
    outputs.append((gated / root * own["value_scale"]) @ own["output"])
  return np.stack(outputs), (states, held)


def start(config):
  shape = (config.mamba2.state_dim, config.mamba2.value_dim)
  return {head: np.zeros(shape) for head in range(config.num_heads)}, []


def work(config, reading, pairs):
  """A token adds to the states of each channel, and reads them."""
  del reading, pairs
  own = config.mamba2
  return 2 * config.num_heads * own.state_dim * own.value_dim, {}


CASES = (cases.Case(4, 1, 0, None, {"layers": ("mamba2",), "pre_norm": True}),)
REST = (
  cases.Case(4, 0, 0, None, {"layers": ("mamba2", "attention")}),
  cases.Case(
    *(3, 7, 0, None),
    {"layers": ("mamba2", "mamba2", "attention"), "num_layers": 3},
  ),
)
VALUES = {"state_dim": (6, 3), "value_dim": (4, 2)}
BLOCKS = {"CHUNK": (2, 3, 64)}
TRANSFER = {"state_dim": "equal", "value_dim": "equal"}
NO_MATRICES = ("convolution",)
SPLITS = {
  "gate": ("fsdp", "tensor"),
  "output": ("tensor", "fsdp"),
  "convolution": (),
}
