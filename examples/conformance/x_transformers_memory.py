"""The memory of x-transformers, as its README has it for Transformer-XL."""

import numpy as np
import torch
import x_transformers as xt

from transformer_xl import conformance


class Decoder(conformance.Facts):
  vocab_size, has_attention, gradient = 23, True, "stops"
  resets_at = "segments"  # A mask hides the memory of a lane.

  def __init__(self, mem_len):
    layers = xt.Decoder(dim=12, depth=2, heads=2, rel_pos_bias=True)
    sizes = {"num_tokens": 23, "max_seq_len": 64, "max_mem_len": mem_len}
    model = xt.TransformerWrapper(attn_layers=layers, **sizes)
    self.model, self.mem_len = model.eval().requires_grad_(False), mem_len

  def init(self, seed):
    torch.manual_seed(seed)
    arrays = self.model.named_parameters()
    return {name: 0.4 * torch.randn_like(array) for name, array in arrays}

  def fresh(self, batch_size):
    mems = np.zeros((2, batch_size, self.mem_len, 12), np.float32)
    return mems, np.zeros((batch_size, self.mem_len), bool)

  def step(self, params, inputs, memory, resets):
    mems, is_kept = torch.tensor(memory[0]), memory[1] & ~resets[:, :1]
    options = {"mems": [*mems], "mem_masks": [torch.tensor(is_kept)] * 2}
    arguments = torch.tensor(inputs).long(), options | {"return_mems": True}
    logits, mems = torch.func.functional_call(self.model, params, *arguments)
    is_kept = np.concatenate([is_kept, np.ones_like(resets)], axis=1)
    is_kept = is_kept[:, is_kept.shape[1] - mems[0].shape[1] :]
    return logits.log_softmax(-1).numpy(), (np.stack(mems), is_kept)


if __name__ == "__main__":
  conformance.show(Decoder, "x-transformers", "TransformerWrapper")
