"""Slots of a compressive layer, made anew for each segment.

What it remembers is all states of the document.
"""

import numpy as np

from tests import kinds
from tests.oracles import cases


def slots(config):
  return config.compressive.slots


def remembered(config, own, past, layer):
  """Memory behind the slots of whole blocks before it, newest blocks last."""
  rate = config.compressive.rate
  end = max(len(past) - layer.mem_len, 0)
  rows = [*past[end:]]
  for _ in range(layer.slots):
    if end >= rate:
      rows.insert(0, _compressed(config, own, past[end - rate : end]))
      end -= rate
  return np.array(rows).reshape(-1, config.model_dim)


def waiting(config, num_read):
  """States that stay in memory until there are c to compress."""
  return num_read % config.compressive.rate


def _compressed(config, own, block):
  """One slot [D] of a block [c, D] (Rae et al. 2020, section 3.2)."""
  columns = list(block.T)
  if config.compressive.function == "mean":
    return np.array([sum(column) / len(block) for column in columns])
  if config.compressive.function == "max":
    return np.array([max(column) for column in columns])
  slot = own["compression"]["bias"]
  matrices = np.split(own["compression"]["kernel"], len(block))
  for state, matrix in zip(block, matrices, strict=True):
    slot = slot + state @ matrix
  return slot


def work(config, reading, pairs):
  """One slot for each c tokens."""
  del pairs
  tokens = 1 if reading.mem_len else 0
  return 0, {"compression": tokens / config.compressive.rate}


def _model(function, slots, rate, **model):
  """A model with a compressed memory in every layer."""
  return {
    "layers": ("compressive",),
    "compressive.function": function,
    "compressive.slots": slots,
    "compressive.rate": rate,
    **model,
  }


# Memory that is no multiple of c, and longer than, as long as and shorter than
# the segment; slots for less and for more than leave with a segment.
CASES = (
  cases.Case(4, 3, 0, None, _model("mean", 3, 2)),
  cases.Case(
    *(8, 2, 0, None),
    _model(
      *("max", 1, 4), encoding=kinds.encoding(rotates=True), pre_norm=True
    ),
  ),
  cases.Case(2, 5, 0, "mem_len", _model("conv", 4, 2, pre_norm=True)),
  # Without memory there are no slots either.
  cases.Case(4, 0, 0, None, _model("mean", 2, 2)),
  # Segments that are no multiple of c.
  cases.Case(3, 5, 0, None, _model("conv", 3, 4)),
  # A pattern of several mixers.
  cases.Case(
    *(3, 7, 0, "mem_len"),
    {
      **_model("conv", 2, 2, pre_norm=True, num_layers=6),
      "layers": (
        kinds.mixers(attends=False)[-1],
        "compressive",
        "attention:4",
      ),
    },
  ),
)
REST = (
  cases.Case(4, 4, 0, None, _model("conv", 1, 4)),
  cases.Case(3, 5, 0, "mem_len", _model("mean", 3, 1)),
  cases.Case(4, 3, 0, "mem_len", _model("conv", 2, 2, untie_biases=True)),
)
VALUES = {"function": ("max", "mean"), "rate": (2, 1), "slots": (3, 4)}
DRAWN = {
  "function": ("mean", "max", "conv"),
  "rate": (1, 2, 3),
  "slots": (1, 2, 3),
}
TRANSFER = {
  "function": "same_shapes",
  "rate": "same_shapes",
  "slots": "same_shapes",
}
SPLITS = {"query": ("fsdp", "tensor"), "compression/kernel": ("fsdp",)}
# Segments of 5 tokens fill whole slots.
WHOLE_SLOTS = {
  "model.layers": ("compressive",),
  "model.compressive.function": "mean",
  "model.compressive.rate": 5,
  "model.compressive.slots": 2,
}
NO_SIZES = ("function",)
