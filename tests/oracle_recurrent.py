"""Mixers that hand on a state, in float64 NumPy, token after token.

Each function takes the configuration of the model, the parameters of the layer,
normalised rows [T, D] of a lane and the state of the lane: vectors [V, D], or
what the mixer says. It returns the outputs and the next state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


def lstm(config, own, rows, vectors):
  """Remembers output and cell."""
  output, cell = vectors
  outputs = []
  for row in rows:
    gates = {
      gate: row @ own["cell"][f"i{gate}"]["kernel"]
      + output @ own["cell"][f"h{gate}"]["kernel"]
      + own["cell"][f"h{gate}"]["bias"]
      for gate in "ifgo"
    }
    new = _sigmoid(gates["i"]) * np.tanh(gates["g"])
    cell = _sigmoid(gates["f"]) * cell + new
    output = _sigmoid(gates["o"]) * np.tanh(cell)
    outputs.append(output)
  return np.stack(outputs), np.stack([output, cell])


def qrnn(config, own, rows, vectors):
  """Remembers the cell and the last row."""
  cell, before = vectors
  outputs = []
  for row in rows:
    pair = np.concatenate([before, row])
    new, forget, gate = np.split(pair @ own["kernel"] + own["bias"], 3)
    forget = _sigmoid(forget)
    cell = forget * cell + (1 - forget) * np.tanh(new)
    outputs.append(_sigmoid(gate) * cell)
    before = row
  return np.stack(outputs), np.stack([cell, before])


def delta(config, own, rows, state):
  """Remembers a matrix [Dv, Dk] a head, and rows before the convolution."""
  matrices, held = state
  heads, width = config.num_heads, config.delta.key_dim
  ends = [heads * width, 2 * heads * width]
  outputs = []
  for row in rows:
    names = ("query", "key", "value")
    held = [*held, np.concatenate([row @ own[name] for name in names])]
    held = held[-4:]
    taps = own["convolution"][: len(held)]
    mixed = _silu(sum(x * tap for x, tap in zip(held[::-1], taps, strict=True)))
    query, key, value = (
      part.reshape(heads, -1) for part in np.split(mixed, ends)
    )
    step = np.log1p(np.exp(row @ own["step"] + own["step_bias"]))
    alpha = np.exp(-np.exp(own["rate_bias"]) * step)
    beta = _sigmoid(row @ own["write"])
    gate = _silu(row @ own["gate"]).reshape(heads, -1)
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


def _start_of_delta(config):
  shape = (config.delta.value_dim, config.delta.key_dim)
  return {head: np.zeros(shape) for head in range(config.num_heads)}, []


def _two_vectors(config):
  return np.zeros((2, config.model_dim))


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _silu(x):
  return x * _sigmoid(x)


class Recurrence(NamedTuple):
  """How a mixer reads, and its state before the first token."""

  read: Callable[..., Any]
  start: Callable[..., Any]


READ = {
  "delta": Recurrence(delta, _start_of_delta),
  "lstm": Recurrence(lstm, _two_vectors),
  "qrnn": Recurrence(qrnn, _two_vectors),
}
