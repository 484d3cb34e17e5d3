"""Layers of zoology (Arora et al. 2023) on a synthetic task's own files.

    git clone https://github.com/HazyResearch/zoology
    PYTHONPATH=.:zoology .venv-transformers/bin/python -m \
      benchmarks.zoology_layers --dataset=data/mqar

after `make .venv-transformers/installed`, whose PyTorch it takes, with the
packages einops, opt_einsum, pydantic and wandb. Trains zoology's models of its
figure 2, two layers without feed-forward networks, on the documents that a
study reads, each as a row of its own, for as many tokens. A model is trained
with each rate of figure 2, and with all seeds at the best by validation.
Prints a line of JSON for each model: right answers in percent, over all and by
distance, for each seed.
"""

import argparse
import functools
import itertools
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_xl.analysis import recall
from transformer_xl.config import registry
from transformer_xl.data import token_file

if TYPE_CHECKING:
  import torch

WIDTH = 64
TOKENS_PER_UPDATE = 2048  # An update of experiments/memory_suite.py reads them.
RATES = (1e-4, 4.6e-4, 2.2e-3, 1e-2)  # numpy.logspace(-4, -2, 4)
WEIGHT_DECAY = 0.1
UNMARKED = -100  # The label of what is no answer, for PyTorch's loss.


class Rows(NamedTuple):
  """The documents of a split, one a row, padded to the longest."""

  inputs: "torch.Tensor"  # [N, L]
  labels: "torch.Tensor"  # [N, L], of the next tokens that are answers.
  bins: list[np.ndarray]  # Indices of the answers by distance.
  distances: list[list[int]]  # The least and greatest of each bin.
  num_tokens: int


def main() -> None:
  """Trains and measures each model, and prints its line."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--dataset", required=True, help="a prepared folder")
  parser.add_argument("--layers", default="attention,based")
  parser.add_argument(
    "--num_tokens", type=int, help="by default those of the task's study"
  )
  parser.add_argument("--batch_size", type=int, default=102, help="documents")
  parser.add_argument("--num_seeds", type=int, default=5)
  options = parser.parse_args()
  # Late, so that --help needs no PyTorch.
  import torch

  _prepare_zoology()
  train, valid, test = (
    read(options.dataset, split) for split in ("train", "valid", "test")
  )
  meta = token_file.read_meta(options.dataset)
  vocab_size = meta["vocabulary"]["size"]
  if options.num_tokens is None:
    updates = registry.tasks[meta["dataset"]].suite_updates
    options.num_tokens = updates * TOKENS_PER_UPDATE
  for layer in options.layers.split(","):

    def trained(
      rate: float, seed: int, layer: str = layer
    ) -> "torch.nn.Module":
      torch.manual_seed(seed)
      model = make_model(layer, vocab_size, train.inputs.shape[1])
      fit(model, train, options, rate=rate, seed=seed)
      return model

    models = {rate: trained(rate, 0) for rate in RATES}
    by_rate = {rate: share(right(models[rate], valid)) for rate in RATES}
    best = max(by_rate, key=by_rate.__getitem__)
    others = [trained(best, seed) for seed in range(1, options.num_seeds)]
    found = [right(model, test) for model in (models[best], *others)]
    line = {
      "layer": layer,
      "num_parameters": sum(one.numel() for one in models[best].parameters()),
      "valid_by_rate": by_rate,
      "rate": best,
      "right": [share(one) for one in found],
      "distances": test.distances,
      "right_by_distance": [
        [share(one[index]) for index in test.bins] for one in found
      ],
    }
    print(json.dumps(line), flush=True)


def _prepare_zoology() -> None:
  """Lets zoology run without a GPU.

  The wheel of torchvision does not load beside a PyTorch without CUDA. Zoology
  has one class from it, which does nothing at its rate, 0. And its embeddings
  are on a GPU unless they are told otherwise.
  """
  import torch

  class StochasticDepth(torch.nn.Identity):
    def __init__(self, rate: float, mode: str) -> None:
      del mode
      assert rate == 0
      super().__init__()

  operations = types.ModuleType("torchvision.ops")
  operations.StochasticDepth = StochasticDepth
  sys.modules["torchvision"] = types.ModuleType("torchvision")
  sys.modules["torchvision.ops"] = operations
  from zoology import model as model_lib

  model_lib.TokenEmbeddings = functools.partial(
    model_lib.TokenEmbeddings, device="cpu"
  )


def read(dataset: str, split: str) -> Rows:
  """The documents of a split, as zoology has them."""
  import torch

  file, answers = recall.open_answers(dataset, split)
  ends = [*file.documents[1:], len(file.tokens)]
  lengths = np.diff([*file.documents, len(file.tokens)])
  shape = (len(lengths), int(lengths.max()))
  inputs = np.zeros(shape, np.int64)
  labels = np.full(shape, UNMARKED, np.int64)
  for row, (start, end) in enumerate(zip(file.documents, ends, strict=True)):
    inputs[row, : end - start] = file.tokens[start:end]
  positions = np.asarray(answers.positions)
  rows = np.searchsorted(file.documents, positions, side="right") - 1
  columns = positions - file.documents[rows]
  labels[rows, columns - 1] = file.tokens[positions]
  scale = recall.scale(file, answers)
  return Rows(
    torch.from_numpy(inputs),
    torch.from_numpy(labels),
    scale.bins,
    scale.distances,
    len(file.tokens),
  )


def make_model(layer: str, vocab_size: int, length: int) -> "torch.nn.Module":
  """A model of zoology's figure 2, with their settings."""
  from zoology import config as config_lib
  from zoology import model as model_lib

  convolution = {
    "name": "zoology.mixers.base_conv.BaseConv",
    "kwargs": {"l_max": length, "kernel_size": 3, "implicit_long_conv": True},
  }
  linear = {
    "name": "zoology.mixers.based.Based",
    "kwargs": {
      "l_max": length,
      "feature_dim": 8,
      "num_key_value_heads": 1,
      "num_heads": 1,
      "feature_name": "taylor_exp",
      "train_view": "quadratic",
    },
  }
  mixers = {
    "attention": {
      "name": "zoology.mixers.attention.MHA",
      "kwargs": {"dropout": 0.1, "num_heads": 1},
    },
    "based": {
      "name": "zoology.mixers.hybrid.Hybrid",
      "kwargs": {"configs": [convolution, linear]},
    },
  }
  return model_lib.LanguageModel(
    config_lib.ModelConfig(
      d_model=WIDTH,
      n_layers=2,
      max_position_embeddings=length if layer == "attention" else 0,
      vocab_size=vocab_size,
      sequence_mixer=mixers[layer],
      state_mixer={"name": "torch.nn.Identity", "kwargs": {}},
    )
  )


def fit(
  model: "torch.nn.Module",
  rows: Rows,
  options: argparse.Namespace,
  *,
  rate: float,
  seed: int,
) -> None:
  """Trains as zoology does: AdamW, and a cosine to 0."""
  import torch

  per_document = rows.num_tokens / len(rows.inputs)
  steps = round(options.num_tokens / per_document / options.batch_size)
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY
  )
  schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
  model.train()
  for index in itertools.islice(_batches(rows, options, seed), steps):
    optimizer.zero_grad()
    logits = model(rows.inputs[index], return_embeddings=False)
    loss = torch.nn.functional.cross_entropy(
      logits.flatten(0, 1),
      rows.labels[index].flatten(),
      ignore_index=UNMARKED,
    )
    loss.backward()
    optimizer.step()
    schedule.step()


def _batches(
  rows: Rows, options: argparse.Namespace, seed: int
) -> Iterator["torch.Tensor"]:
  """Indices of documents, in a new order each epoch."""
  import torch

  generator = torch.Generator().manual_seed(seed)
  while True:
    order = torch.randperm(len(rows.inputs), generator=generator)
    for index in order.split(options.batch_size):
      if len(index) == options.batch_size:
        yield index


def right(model: "torch.nn.Module", rows: Rows) -> np.ndarray:
  """Whether each answer is the likeliest token there, in the text's order."""
  import torch

  model.eval()
  found = []
  with torch.inference_mode():
    for inputs, labels in zip(
      rows.inputs.split(1000), rows.labels.split(1000), strict=True
    ):
      likeliest = model(inputs, return_embeddings=False).argmax(-1)
      marked = labels != UNMARKED
      found.append((likeliest == labels)[marked].numpy())
  return np.concatenate(found)


def share(answers: np.ndarray) -> float:
  """Right answers in percent."""
  return round(100 * float(answers.mean()), 1)


if __name__ == "__main__":
  os.environ.setdefault("WANDB_MODE", "disabled")
  main()
