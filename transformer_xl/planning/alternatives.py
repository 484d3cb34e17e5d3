"""Configurations that need less memory, for plans that do not fit."""

import math
from collections.abc import Iterator

from transformer_xl.config import load
from transformer_xl.config import schema


def smaller(
  config: schema.ExperimentConfig, *, num_devices: int
) -> Iterator[tuple[str, schema.ExperimentConfig]]:
  """Yields flags and the configuration that they give, smallest change first.

  Rematerialisation, sharded parameters and gradient accumulation leave every
  update the same up to rounding; a smaller batch does not.
  """
  # According to the plans in docs/tpu.md, recomputing attention halves the
  # memory of wt103_large at half the cost of recomputing everything.
  remat = {"model.remat": "full"}
  is_full = config.model.remat == "full"
  recomputing = [] if is_full else [{"model.remat": "attention"}, remat]
  # The number of shards must divide the model's width.
  num_shards = math.gcd(num_devices, config.model.model_dim)
  split = {"mesh.data": -1, "mesh.fsdp": num_shards, "mesh.tensor": 1}
  both = {**remat, **split}
  tries: list[dict] = [*recomputing, split, both]
  for factor in (2, 4, 8):
    steps = factor * config.train.accumulation_steps
    if config.train.batch_size % (steps * num_devices) == 0:
      tries.append({**both, "train.accumulation_steps": steps})
  for divisor in (2, 4, 8):
    if config.train.batch_size % (divisor * num_devices) == 0:
      lanes = config.train.batch_size // divisor
      steps = lanes // num_devices  # One lane per device at a time.
      tries.append(
        {
          **both,
          "train.batch_size": lanes,
          "train.accumulation_steps": steps,
        }
      )
  for fields in tries:
    changed = load.replaced(config, fields)
    if changed != config:
      yield _flags(fields), changed


def _flags(fields) -> str:
  return " ".join(f"--config.{name}={value}" for name, value in fields.items())
