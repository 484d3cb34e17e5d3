"""Workloads of the speed benchmarks: what is run, and on how large a model.

Tokens are random, since arithmetic takes equally long on them.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Workload:
  """A task, the size of a model, and its lengths.

  A segment of the task `generate` is one token of each sample.
  """

  task: str = "train"  # train | evaluate | generate
  num_layers: int = 6
  model_dim: int = 256
  num_heads: int = 8
  ff_dim: int = 1024
  vocab_size: int = 256
  batch_size: int = 8
  segment_len: int = 128
  mem_len: int = 128
  dtype: str = "float32"
  encoding: str = "relative"

  @property
  def tokens(self) -> int:
    """Tokens in one segment of all lanes."""
    return self.batch_size * self.segment_len


TASKS = {
  "train": Workload("train"),
  "evaluate": Workload("evaluate", mem_len=1600),
  "generate": Workload("generate", batch_size=1, segment_len=1, mem_len=1600),
}
LARGE = {"num_layers": 12, "model_dim": 512, "ff_dim": 2048}


def tokens(work: Workload, *, count: int) -> np.ndarray:
  """Random ids [count, B, T + 1]; the last column is only a target."""
  shape = (count, work.batch_size, work.segment_len + 1)
  ids = np.random.default_rng(0).integers(work.vocab_size, size=shape)
  return ids.astype(np.int32)
