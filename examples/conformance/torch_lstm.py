"""PyTorch's LSTM: `python examples/conformance/torch_lstm.py`."""

import numpy as np
import torch
from torch.nn.utils import rnn

from transformer_xl import conformance


class Lstm(conformance.Facts):
  width = 6
  resets_at = "segments"  # The caller sets the state of a lane to zero.
  gradient = "flows"
  layers = torch.nn.LSTM(6, 6, num_layers=2, batch_first=True)

  def init(self, seed):
    torch.manual_seed(seed)
    arrays = self.layers.state_dict()
    return {n: 0.4 * torch.randn_like(arrays[n]) for n in arrays}

  def fresh(self, batch_size):
    return (np.zeros((2, batch_size, 6), np.float32),) * 2

  def step(self, params, inputs, memory, resets, count=None):
    state = tuple(torch.tensor(part * ~resets[:, :1]) for part in memory)
    lengths = [count or inputs.shape[1]] * len(inputs)
    packed = rnn.pack_padded_sequence(torch.tensor(inputs), lengths, True)
    with torch.no_grad():
      arguments = self.layers, params, (packed, state)
      outputs, state = torch.func.functional_call(*arguments)
      outputs, _ = rnn.pad_packed_sequence(outputs, batch_first=True)
    return outputs.numpy(), tuple(part.numpy() for part in state)

  def padded(self, params, inputs, memory, count):
    resets = np.zeros(inputs.shape[:2], bool)
    return self.step(params, inputs, memory, resets, count)


if __name__ == "__main__":
  conformance.show(Lstm(), "torch", "nn.LSTM")
