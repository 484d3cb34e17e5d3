"""HuggingFace's Gated DeltaNet, as it runs without kernels."""

import numpy as np
import torch
import transformers
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from transformer_xl import conformance

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "linear_value_head_dim": 4}


class DeltaNet(conformance.Facts):
  width = 8
  resets_at = "segments"  # A state of zeros is a fresh one.
  gradient = "flows"
  config = transformers.Qwen3NextConfig(**SIZES)

  def __init__(self):
    self.module = qwen.Qwen3NextGatedDeltaNet(self.config, 0).requires_grad_(
      False
    )

  def init(self, seed):
    torch.manual_seed(seed)
    arrays = self.module.named_parameters()
    return {name: 0.4 * torch.randn_like(array) for name, array in arrays}

  def fresh(self, batch_size):
    shapes = (4224, 4), (32, 128, 4)
    return [np.zeros((batch_size, *shape), np.float32) for shape in shapes]

  def step(self, params, inputs, memory, resets):
    cache = transformers.DynamicCache(config=self.config)
    conv, state = (torch.tensor((~resets[:, 0] * m.T).T) for m in memory)
    cache.update_conv_state(conv, 0)
    cache.update_recurrent_state(state, 0)
    arguments = torch.tensor(inputs), cache
    outputs = torch.func.functional_call(self.module, params, arguments)
    memory = cache.get_conv_state(0), cache.get_recurrent_state(0)
    return outputs.numpy(), [part.numpy() for part in memory]


if __name__ == "__main__":
  conformance.show(DeltaNet(), "transformers", "Qwen3NextGatedDeltaNet")
