"""Runs HuggingFace's TransfoXL on a drawn configuration."""

import pathlib
import warnings
from typing import Any

import numpy as np
from flax import traverse_util

from tests.importers import opened
from tests.parity import configurations
from tests.parity import ours
from tests.parity import weights
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping

with warnings.catch_warnings():
  # Transformers 4.35 registers tree nodes in a way PyTorch no longer likes.
  warnings.simplefilter("ignore")
  import torch
  from transformers.models.transfo_xl import configuration_transfo_xl
  from transformers.models.transfo_xl import modeling_transfo_xl


def make(drawn: configurations.Drawn) -> Any:
  """HuggingFace's model, with weights drawn by its own names."""
  lengths = mapping.Lengths(
    drawn.segment_lens[0], drawn.mem_len, drawn.clamp_len, drawn.same_length
  )
  fields = huggingface.config_fields(drawn.model, lengths)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # About its version 5.
    model = modeling_transfo_xl.TransfoXLLMHeadModel(
      configuration_transfo_xl.TransfoXLConfig(**fields)
    )
  for name, parameter in model.named_parameters():
    values = weights.draw(drawn.index, name, tuple(parameter.shape))
    parameter.data = torch.from_numpy(values)
  return model.eval()


def save(model: Any, folder: pathlib.Path, *, safe: bool) -> None:
  """Writes config.json and the weights as a user's `save_pretrained` does."""
  model.save_pretrained(folder, safe_serialization=safe)


def load(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """What HuggingFace reads from a folder, by its names."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    model = modeling_transfo_xl.TransfoXLLMHeadModel.from_pretrained(folder)
  return {name: value.numpy() for name, value in model.state_dict().items()}


def run(drawn: configurations.Drawn, model: Any) -> ours.Run:
  """All segments, one after another."""
  losses, log_probs, memories, memory = [], [], [], None
  for tokens in drawn.tokens:
    tokens = torch.from_numpy(tokens)
    output = model(tokens[:, :-1], mems=memory)
    memory = output.mems
    scores = output.prediction_scores
    chosen = torch.gather(scores, 2, tokens[:, 1:, None])
    losses.append(-chosen.flatten())
    log_probs.append(scores.detach().numpy())
    memories.append(_stack(memory))
  loss = torch.cat(losses).mean()
  loss.backward()
  return ours.Run(log_probs, memories, loss.item(), _gradients(drawn, model))


def _stack(memory) -> np.ndarray:
  """Layers [M, B, D] as our [N, B, M, D]."""
  return np.stack([layer.numpy().swapaxes(0, 1) for layer in memory])


def _gradients(drawn: configurations.Drawn, model) -> dict[str, np.ndarray]:
  """By our paths: what maps weights maps their gradients."""
  named = {
    name: np.zeros(parameter.shape, np.float32)
    if parameter.grad is None
    else parameter.grad.numpy()
    for name, parameter in model.named_parameters()
  }
  gradients, _ = opened.read(
    named, huggingface.layout(drawn.model), drawn.model, ignored="$^"
  )
  return traverse_util.flatten_dict(gradients, sep="/")
