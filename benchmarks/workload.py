"""Workloads of the speed benchmarks: the size of a model, and its task.

Every field can be set on the command line of a benchmark: `--batch_size=1`.
Tokens are random, since arithmetic takes equally long on them.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import flags

from experiments import base
from transformer_xl.config import load
from transformer_xl.config import schema


@dataclasses.dataclass(frozen=True)
class Workload:
  """A model's size, its lengths and its task."""

  task: str  # train | evaluate | generate
  num_layers: int
  model_dim: int
  num_heads: int
  ff_dim: int
  vocab_size: int
  batch_size: int
  segment_len: int
  mem_len: int
  dtype: str
  encoding: str = "relative"

  @property
  def tokens(self) -> int:
    """Tokens in one segment of all lanes."""
    return self.batch_size * self.segment_len


SMALL = {"num_layers": 6, "model_dim": 256, "num_heads": 8, "ff_dim": 1024}
LARGE = {"num_layers": 12, "model_dim": 512, "num_heads": 8, "ff_dim": 2048}
COMMON = {"vocab_size": 256, "segment_len": 128, "dtype": "float32"}
TRAIN = {"task": "train", **COMMON, "batch_size": 8, "mem_len": 128}
EVALUATE = {"task": "evaluate", **COMMON, "batch_size": 8, "mem_len": 1600}
GENERATE = {
  **{"task": "generate", **COMMON},
  **{"batch_size": 1, "segment_len": 1, "mem_len": 1600},
}


def make(*parts: dict[str, Any]) -> Workload:
  """Merges dictionaries of fields, the later overriding the earlier."""
  fields: dict[str, Any] = {}
  for part in parts:
    fields |= part
  return Workload(**fields)


def fields(work: Workload) -> dict[str, Any]:
  """Fields by name, without the task."""
  values = dataclasses.asdict(work)
  del values["task"]
  return values


def changed(work: Workload) -> dict[str, Any]:
  """Fields by name, without those at a default, which older versions lack."""
  return {
    field.name: getattr(work, field.name)
    for field in dataclasses.fields(work)
    if getattr(work, field.name) != field.default
  }


def define_flags(defaults: dict[str, Any]) -> None:
  """Defines a flag for each of these fields."""
  for name, value in defaults.items():
    define = flags.DEFINE_integer if type(value) is int else flags.DEFINE_string
    define(name, value, "See benchmarks/workload.py.")


def from_flags(defaults: Workload) -> Workload:
  """The workload that the flags describe."""
  chosen = {name: flags.FLAGS[name].value for name in fields(defaults)}
  return dataclasses.replace(defaults, **chosen)


def experiment(work: Workload) -> schema.ExperimentConfig:
  """The workload as a configuration: Adam, clipping, no dropout."""
  config = base.get_config()
  config.model.update(
    {
      "vocab_size": work.vocab_size,
      "num_layers": work.num_layers,
      "model_dim": work.model_dim,
      "num_heads": work.num_heads,
      "head_dim": work.model_dim // work.num_heads,
      "ff_dim": work.ff_dim,
      "encoding": work.encoding,
      "dropout_rate": 0.0,
      "same_length_window": "mem_len",
      "dtype": work.dtype,
    }
  )
  lengths = {
    "batch_size": work.batch_size,
    "segment_len": work.segment_len,
    "mem_len": work.mem_len,
  }
  config.train.update(lengths)
  config.eval.update({**lengths, "mem_len": (work.mem_len,)})
  return load.from_config_dict(config)


def tokens(work: Workload, *, count: int) -> np.ndarray:
  """Random ids [count, B, T + 1]; the last column is only a target."""
  shape = (count, work.batch_size, work.segment_len + 1)
  ids = np.random.default_rng(0).integers(work.vocab_size, size=shape)
  return ids.astype(np.int32)
