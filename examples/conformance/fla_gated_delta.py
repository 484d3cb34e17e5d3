"""flash-linear-attention's gated delta rule, in the forms that need no GPU."""

import importlib.util
import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional

from transformer_xl import conformance

# Its packages import Triton; this file does not.
package = pathlib.Path(importlib.util.find_spec("fla").origin).parent
sys.path.append(str(package / "ops/gated_delta_rule"))
import naive  # noqa: E402


class Delta(conformance.Facts):
  width, resets_at, gradient = 8, "segments", "flows"

  def __init__(self, form):
    self.form = form

  def init(self, seed):
    return np.random.default_rng(seed).standard_normal((8, 28), np.float32)

  def fresh(self, batch_size):
    return np.zeros((batch_size, 2, 4, 4), np.float32)

  def step(self, params, inputs, memory, resets):
    rows = torch.tensor(inputs @ params).unflatten(-1, (2, 14))
    *vectors, gates = rows.split((4, 4, 4, 2), dim=-1)
    outputs, state = self.form(
      *(functional.normalize(vector, dim=-1) for vector in vectors),
      beta=gates[..., 0].sigmoid(),
      g=functional.logsigmoid(gates[..., 1]),
      output_final_state=True,
      initial_state=torch.tensor((~resets[:, 0] * memory.T).T),
    )
    return outputs.flatten(-2).numpy(), state.numpy()


if __name__ == "__main__":
  for name in ("recurrent", "chunk"):
    form = getattr(naive, f"naive_{name}_gated_delta_rule")
    conformance.show(Delta(form), "flash-linear-attention", form.__name__)
