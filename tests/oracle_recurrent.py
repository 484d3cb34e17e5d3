"""Mixers that hand on vectors, in float64 NumPy, token after token.

Each function takes the configuration of the model, the parameters of the layer,
normalised rows [T, D] of a lane and its remembered vectors [V, D]. It returns
the outputs and the next vectors.
"""

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


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


# The function of each mixer, and how many vectors it remembers.
READ = {"lstm": (lstm, 2), "qrnn": (qrnn, 2)}
