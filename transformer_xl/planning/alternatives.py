"""Configurations that need less memory, for plans that do not fit."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

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
  # The number of shards must divide the model's width.
  num_shards = math.gcd(num_devices, config.model.model_dim)
  split = {"mesh.data": -1, "mesh.fsdp": num_shards, "mesh.tensor": 1}
  both: dict[str, Any] = {**remat, **split}
  again = [] if is_full else [{"model.remat": "attention"}, remat]
  tries: list[dict[str, Any]] = [*again, split, both]
  lanes = config.train.batch_size
  for factor in (2, 4, 8):
    steps = factor * config.train.accumulation_steps
    if lanes % (steps * num_devices) == 0:
      tries.append({**both, "train.accumulation_steps": steps})
  for divisor in (2, 4, 8):
    if lanes % (divisor * num_devices) == 0:
      fewer = {"train.batch_size": lanes // divisor}
      # One lane per device at a time.
      steps = lanes // divisor // num_devices
      tries.append({**both, **fewer, "train.accumulation_steps": steps})
  for fields in tries:
    changed = config
    for name, value in fields.items():
      group, _, field = name.partition(".")
      part = dataclasses.replace(getattr(changed, group), **{field: value})
      changed = dataclasses.replace(changed, **{group: part})
    if changed != config:
      flags = [f"--config.{name}={value}" for name, value in fields.items()]
      yield " ".join(flags), changed
