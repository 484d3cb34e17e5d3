"""A run as its workdir tells of it: configuration, text and logged losses."""

import json
import os
from typing import Any
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import saved
from transformer_xl.config import schema

# Fields of the sections below that leave the training loss as it is, but for
# rounding and the draw of dropout. Those that are not named here matter.
SECTIONS = ("model", "data", "train")
FREE = {
  "model.attention",
  "model.remat",
  "model.scan_unroll",
  "data.name",  # Its hash is compared.
  "data.dir",
  "data.prepare",
  "train.segments_per_call",
  "train.accumulation_steps",
  "train.log_every_steps",
  "train.eval_every_steps",
  "train.eval_mem_len",
  "train.log_memory_use",
  "train.finish_with",
}


class Run(NamedTuple):
  """What a workdir tells of its run."""

  config: schema.ExperimentConfig
  data_sha256: str
  losses: dict[int, float]  # Mean since the log line before, by step.
  validation: dict[int, float]
  versions: dict[str, str]


def read(workdir: str) -> Run:
  """Reads a run that is finished or still going on.

  Raises:
    UserError: the workdir lacks something.
  """
  config = load.from_config_dict(saved.get_config(workdir))
  with open(os.path.join(workdir, "config.json"), encoding="utf-8") as file:
    versions = json.load(file).get("versions", {})
  path = os.path.join(workdir, "vocabulary", "meta.json")
  try:
    with open(path, encoding="utf-8") as file:
      digest = json.load(file)["splits"]["train"]["sha256"]
  except (OSError, ValueError, KeyError):
    raise errors.UserError(
      f"{path} does not say which text it was; train anew in another --workdir."
    ) from None
  losses, validation = _read_losses(os.path.join(workdir, "metrics.jsonl"))
  return Run(config, digest, losses, validation, versions)


def _read_losses(path: str) -> tuple[dict[int, float], dict[int, float]]:
  losses: dict[int, float] = {}
  validation: dict[int, float] = {}
  try:
    with open(path, encoding="utf-8") as file:
      lines = file.read().splitlines()
  except OSError:
    return losses, validation  # It has not come to its first line.
  for line in lines:
    try:
      record = json.loads(line)
    except json.JSONDecodeError:
      continue  # The last one, while it is being written.
    if "split" in record:
      validation[record["step"]] = record["nll"]
    elif "loss" in record:  # A line of divergence has none.
      losses[record["step"]] = record["loss"]
  return losses, validation


def differs(run: Run, config: schema.ExperimentConfig, sha256: str) -> str:
  """The first thing that matters and differs, in words; "" if none does.

  Args:
    run: to look at.
    config: that it should have.
    sha256: of the text that it should read.
  """
  others = fields(config)
  for name, value in fields(run.config).items():
    matters = name.partition(".")[0] in SECTIONS and name not in FREE
    if matters and value != others[name]:
      return f"config.{name} is {value!r}, the reference has {others[name]!r}."
  if run.data_sha256 != sha256:
    return (
      f"its training text (SHA-256 {run.data_sha256[:12]}) is not the "
      f"reference's ({sha256[:12]})."
    )
  return ""


def fields(config: schema.ExperimentConfig) -> dict[str, Any]:
  """Every field by its name, such as `train.seed`."""
  return {
    f"{section}.{name}": value
    for section, values in load.to_dict(config).items()
    if isinstance(values, dict)
    for name, value in values.items()
  }
