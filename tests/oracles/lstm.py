"""Hands on output and cell."""

import numpy as np

from tests.oracles import cases
from tests.oracles import gates


def read(config, own, rows, vectors):
  output, cell = vectors
  outputs = []
  for row in rows:
    found = {
      gate: row @ own["cell"][f"i{gate}"]["kernel"]
      + output @ own["cell"][f"h{gate}"]["kernel"]
      + own["cell"][f"h{gate}"]["bias"]
      for gate in "ifgo"
    }
    new = gates.sigmoid(found["i"]) * np.tanh(found["g"])
    cell = gates.sigmoid(found["f"]) * cell + new
    output = gates.sigmoid(found["o"]) * np.tanh(cell)
    outputs.append(output)
  return np.stack(outputs), np.stack([output, cell])


def start(config):
  return np.zeros((2, config.model_dim))


CASES = (cases.Case(4, 1, 0, None, {"layers": ("lstm",), "pre_norm": True}),)
REST = (cases.Case(4, 0, 0, None, {"layers": ("lstm", "attention")}),)
SPLITS = {"cell/ig/kernel": ("fsdp",), "cell/hg/bias": ()}
