"""Settings that need less memory than one that does not fit."""

import dataclasses
import math
from collections.abc import Iterator

from transformer_xl.config import schema


def smaller(
  config: schema.ExperimentConfig, *, num_devices: int
) -> Iterator[tuple[str, schema.ExperimentConfig]]:
  """Flags that change a configuration, and what it is then.

  The least change comes first: recomputing and splitting parameters leave
  every update as it is to rounding, and so does reading the lanes of one in
  parts; a smaller batch does not.
  """
  # By the plans of docs/tpu.md recomputing attention halves what wt103_large
  # holds for half of the time that recomputing all takes.
  remat = {"model.remat": "full"}
  is_full = config.model.remat == "full"
  recomputing = [] if is_full else [{"model.remat": "attention"}, remat]
  # More devices than divide the width could not split parameters further.
  parts = math.gcd(num_devices, config.model.model_dim)
  split = {"mesh.data": -1, "mesh.fsdp": parts, "mesh.tensor": 1}
  both = {**remat, **split}
  tries: list[dict] = [*recomputing, split, both]
  for parts in (2, 4, 8):
    parts *= config.train.accumulation_steps
    if config.train.batch_size % (parts * num_devices) == 0:
      tries.append({**both, "train.accumulation_steps": parts})
  for part in (2, 4, 8):
    if config.train.batch_size % (part * num_devices) == 0:
      lanes = config.train.batch_size // part
      # As many at a time as one device each, the least there can be.
      steps = lanes // num_devices
      tries.append(
        {
          **both,
          "train.batch_size": lanes,
          "train.accumulation_steps": steps,
        }
      )
  for fields in tries:
    changed = _replaced(config, fields)
    if changed != config:
      yield _flags(fields), changed


def _replaced(config, fields):
  """The configuration with other values; by `group.name`."""
  for name, value in fields.items():
    group, _, field = name.partition(".")
    part = dataclasses.replace(getattr(config, group), **{field: value})
    config = dataclasses.replace(config, **{group: part})
  return config


def _flags(fields) -> str:
  return " ".join(f"--config.{name}={value}" for name, value in fields.items())
