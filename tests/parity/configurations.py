"""Random models that cover every option of HuggingFace's.

NumPy's `RandomState` draws them: its streams never change, so a machine
without PyTorch draws the very models whose results are stored.
"""

from typing import NamedTuple

import numpy as np

import tests.tiny
from transformer_xl.config import schema

NUM_DRAWN = 30
# Every value of every option is in one of them.
CHARACTERISTIC = (0, 1, 2, 10, 15, 17)


class Drawn(NamedTuple):
  """A model and how it is run."""

  index: int
  model: schema.ModelConfig
  tokens: tuple[np.ndarray, ...]  # Consecutive segments [B, T + 1].
  mem_len: int
  clamp_len: int  # 0: none.
  same_length: bool

  @property
  def batch_size(self) -> int:
    return len(self.tokens[0])

  @property
  def segment_lens(self) -> tuple[int, ...]:
    return tuple(segment.shape[1] - 1 for segment in self.tokens)


def draw(index: int, **fields) -> Drawn:
  """One model; `fields` override what is drawn for `ModelConfig`."""
  random = np.random.RandomState(index)

  def choose(*options):
    return options[random.randint(len(options))]

  # These three in turn, so that all of their combinations are there.
  div_val = (1, 2, 4)[index % 3]
  cutoffs = ((), choose((9,), (6, 14)))[index // 3 % 2]
  model_dim = (choose(8, 12), 16)[index // 6 % 2]
  drawn = {
    "vocab_size": 24 + random.randint(8),
    "num_layers": choose(1, 2, 3),
    "model_dim": model_dim,
    "num_heads": choose(1, 2, 3),
    "head_dim": choose(3, 4),
    "ff_dim": choose(10, 17),
    "embed_dim": 16,
    "cutoffs": cutoffs,
    "div_val": div_val,
    "tie_weights": choose(True, True, False),
    "tie_projections": choose("all_but_first", "none", "all"),
    "untie_biases": choose(True, False),
    "pre_norm": choose(False, False, True),
    "memory_start": "zeros",
    "same_length_window": "mem_len",
    "layer_norm_epsilon": choose(1e-5, 1e-3),
  }
  if not cutoffs and drawn["tie_projections"] == "none":
    drawn["tie_projections"] = "all_but_first"  # The same, without clusters.
  drawn.update(fields)
  vocab_size, batch_size = drawn["vocab_size"], choose(1, 2, 3, 4)
  # Two lengths, so that two programs are compiled and not one a segment.
  first, second = random.permutation([1, 3, 5, 8])[:2]
  lengths = choose((first, second, first), (first, second, second, first))
  return Drawn(
    index=index,
    model=tests.tiny.model_config(**drawn),
    tokens=tuple(
      random.randint(vocab_size, size=(batch_size, length + 1))
      for length in lengths
    ),
    mem_len=choose(2, 4, 7, 13),
    clamp_len=choose(0, 3, 6),
    same_length=choose(True, False),
  )
