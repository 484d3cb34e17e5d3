"""The published Penn Treebank model's losses and updates on drawn weights.

    python -m tests.parity.published_ptb CODE

runs its model from a folder CODE with `transformer_xl.py` (README of the public
repository ischlag/Fast-Weight-Memory-public, language-modelling) and writes the
numbers that `test_published_ptb.py` compares with. `train.py` there is no
module; the updates below are those of its loop, with a constant rate.
"""

import pathlib
import sys

import numpy as np

from tests.parity import weights

PATH = pathlib.Path(__file__).parent / "stored" / "published_ptb.npz"
LANES, CONTEXT = 2, 4
VOCABULARY, LAYERS, WIDTH, HEADS, HEAD_WIDTH, INNER = 23, 3, 12, 3, 4, 10
LENGTHS = (6, 7, 5, 8, 6, 3, 6, 7)  # Drawn segment lengths; 6 is the mean.
MEAN_START = 5  # Updates before the mean of the parameters.
OPTIONS = {
  "learning_rate": 1e-2,
  "embedding_rate_factor": 2.0,
  "average_rate_factor": 0.5,
  "l2_penalty": 1e-2,
  "clip_norm": 0.25,
  "activation_penalty": 0.2,
  "temporal_activation_penalty": 0.1,
  # The default would turn rounding of small gradients into whole steps.
  "adam_epsilon": 1e-4,
}


def text() -> np.ndarray:
  """Tokens of all lanes, [B, N + 1]."""
  shape = (LANES, sum(LENGTHS) + 1)
  return np.random.RandomState(0).randint(0, VOCABULARY, shape)


def parameters() -> dict[str, tuple[int, ...]]:
  """Names and shapes of the published model."""
  shapes = {"word_emb.weight": (VOCABULARY, WIDTH)}
  for layer in range(LAYERS):
    attention, inner = f"layers.{layer}.dec_attn", f"layers.{layer}.pos_ff"
    shapes |= {
      f"{attention}.qkv_net.0.weight": (3 * HEADS * HEAD_WIDTH, WIDTH),
      f"{attention}.o_net.weight": (WIDTH, HEADS * HEAD_WIDTH),
      f"{inner}.CoreNet.0.weight": (INNER, WIDTH),
      f"{inner}.CoreNet.0.bias": (INNER,),
      f"{inner}.CoreNet.3.weight": (WIDTH, INNER),
      f"{inner}.CoreNet.3.bias": (WIDTH,),
    }
    for part in (attention, inner):
      shapes[f"{part}.layer_norm.weight"] = (WIDTH,)
      shapes[f"{part}.layer_norm.bias"] = (WIDTH,)
  return shapes | {"out_layer.bias": (VOCABULARY,)}


def drawn() -> dict[str, np.ndarray]:
  """Weights of the published model, by its names."""
  return {
    name: weights.draw(0, name, shape) for name, shape in parameters().items()
  }


def stored() -> dict[str, np.ndarray]:
  """What `main` wrote."""
  with np.load(PATH) as file:
    return dict(file)


def main(code: str) -> None:
  sys.path.insert(0, code)
  import torch

  import transformer_xl as published

  assert hasattr(published, "AWDTransformerXL"), published.__file__
  model = published.AWDTransformerXL(
    *(VOCABULARY, LAYERS, HEADS, WIDTH, HEAD_WIDTH, INNER),
    *[0.0] * 6,  # All dropout.
    ext_len=CONTEXT,
  )
  named = dict(model.named_parameters())
  assert set(named) == set(parameters())
  for name, values in drawn().items():
    named[name].data = torch.from_numpy(values)
  model.out_layer.weight = model.word_emb.weight
  table = named["word_emb.weight"]
  others = [value for value in named.values() if value is not table]
  rate = OPTIONS["learning_rate"]
  rates = [rate, rate * OPTIONS["embedding_rate_factor"]]
  groups = [
    {"params": params, "lr": rate}
    for params, rate in zip((others, [table]), rates, strict=True)
  ]
  optimizer = torch.optim.Adam(
    groups, weight_decay=OPTIONS["l2_penalty"], eps=OPTIONS["adam_epsilon"]
  )
  tokens, start = torch.from_numpy(text().T), 0
  result, mean = {}, {}
  for update, length in enumerate(LENGTHS):
    if update == MEAN_START:
      mean = {name: value.data.clone() for name, value in named.items()}
      rates = [rate * OPTIONS["average_rate_factor"] for rate in rates]
    inputs = tokens[max(start - CONTEXT, 0) : start + length]
    targets = tokens[start + 1 : start + length + 1]
    losses, hidden = model(inputs, targets, return_h=True)
    result[f"losses_{update}"] = losses.detach().numpy().T
    loss = losses.mean()
    loss += OPTIONS["activation_penalty"] * hidden.pow(2).mean()
    change = hidden[1:] - hidden[:-1]
    loss += OPTIONS["temporal_activation_penalty"] * change.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["clip_norm"])
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
      group["lr"] = rate * length / 6
    optimizer.step()
    for name in mean:
      count = update + 1 - MEAN_START
      mean[name] += (named[name].data - mean[name]) / count
    start += length
  for name, value in named.items():
    result[f"parameters/{name}"] = value.data.numpy()
    result[f"mean/{name}"] = mean[name].numpy()
  np.savez_compressed(PATH, **result)


if __name__ == "__main__":
  main(sys.argv[1])
