"""HuggingFace's Transformer-XL, which is in transformers up to 4.35.2."""

import torch
import transformers

from transformer_xl import conformance


class TransfoXL(conformance.Facts):
  vocab_size = 23
  has_attention = True
  masks_empty = False  # Memory starts with zeros, which are attended to.
  resets_at = "segments"
  gradient = "stops"

  def __init__(self, **lengths):
    widths = {"d_model": 12, "d_embed": 12, "d_inner": 12, "d_head": 4}
    sizes = {"vocab_size": 23, "n_layer": 2, "n_head": 3, "cutoffs": []}
    config = transformers.TransfoXLConfig(**widths, **sizes, **lengths)
    self.model = transformers.TransfoXLLMHeadModel(config).eval()

  def init(self, seed):
    torch.manual_seed(seed)
    arrays = dict(self.model.named_parameters())
    return {n: 0.4 * torch.randn_like(arrays[n].data) for n in arrays}

  def fresh(self, batch_size):
    return [part.numpy() for part in self.model.init_mems(batch_size) or []]

  def step(self, params, inputs, memory, resets):
    mems = [torch.tensor(part * ~resets[:, :1]) for part in memory] or None
    arguments = torch.tensor(inputs).long(), mems
    with torch.no_grad():
      output = torch.func.functional_call(self.model, params, arguments)
    memory = [part.numpy() for part in output.mems or []]
    return output.prediction_scores.numpy(), memory


if __name__ == "__main__":
  conformance.show(TransfoXL, "transformers", "TransfoXLLMHeadModel")
