"""LSTM and QRNN in float64 NumPy, token after token, from the equations.

A lane's state is, for each layer, the output, the cell and the input of the
last token, [3, D]; zeros before the first. Parameters are the package's tree:

    layers_{n}/cell/i{gate}/kernel             [D, D], gates i, f, g, o
    layers_{n}/cell/h{gate}/kernel, bias       [D, D], [D]
    layers_{n}/kernel, bias                    [D or 2D, 3D], [3D]: z, f, o
"""

import numpy as np

from tests import oracle


def start(config, *, batch_size: int) -> np.ndarray:
  """The states before the first token, [B, N, 3, D]."""
  return np.zeros((batch_size, config.num_layers, 3, config.model_dim))


def segment(params, config, tokens, states, *, resets=None):
  """Log-probabilities [B, T, V] of each next token, and the next states."""
  params, tokens = oracle._float64(params), np.asarray(tokens)
  resets = np.zeros(tokens.shape, bool) if resets is None else resets
  states = states.copy()
  result = np.zeros((*tokens.shape, config.vocab_size))
  for lane, time in np.ndindex(tokens.shape):
    if resets[lane, time]:
      states[lane] = 0
    (row,) = oracle.embed(params, config, tokens[lane, time : time + 1])
    for layer in range(config.num_layers):
      own = params[f"layers_{layer}"]
      read = _lstm if config.kind == "lstm" else _qrnn
      output, cell = read(own, row, *states[lane, layer])
      states[lane, layer] = output, cell, row
      row = output
    (result[lane, time],) = oracle.log_probs(params, config, row[None])
  return result, states


def _lstm(own, row, output, cell, before):
  del before
  gates = {
    gate: row @ own["cell"][f"i{gate}"]["kernel"]
    + output @ own["cell"][f"h{gate}"]["kernel"]
    + own["cell"][f"h{gate}"]["bias"]
    for gate in "ifgo"
  }
  new = _sigmoid(gates["i"]) * np.tanh(gates["g"])
  cell = _sigmoid(gates["f"]) * cell + new
  return _sigmoid(gates["o"]) * np.tanh(cell), cell


def _qrnn(own, row, output, cell, before):
  del output
  rows = np.concatenate([before, row])
  rows = rows[-own["kernel"].shape[0] :]  # The token before, in layer 0 only.
  new, forget, gate = np.split(rows @ own["kernel"] + own["bias"], 3)
  forget = _sigmoid(forget)
  cell = forget * cell + (1 - forget) * np.tanh(new)
  return _sigmoid(gate) * cell, cell


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))
