"""A run as its workdir records it: configuration, text and logged losses."""

import json
import math
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.config import training_fields
from transformer_xl.workdir import metrics_log

# Fields of these sections affect the training loss, except for the ones in
# IRRELEVANT, which change at most rounding.
SECTIONS = ("model", "data", "train")
IRRELEVANT = {
  "model.attention",
  "model.dtype",
  "model.remat",
  "model.scan_unroll",
  "model.cluster_capacities",
  "data.name",  # The text's hash is compared.
  "data.dir",
  "data.prepare",
  "train.segments_per_call",
  "train.accumulation_steps",
  "train.num_steps",  # `decay_steps` has its effect on the learning rate.
  "train.eval_every_steps",
  "train.finish_with",
  *training_fields.ONLY_LOGGED,
}


class Run(NamedTuple):
  """The record of a run in its workdir."""

  config: schema.ExperimentConfig
  data_sha256: str
  losses: dict[int, float]  # By step; mean since the previous log line.
  validation: dict[int, float]
  versions: dict[str, str]


def read(workdir: str) -> Run:
  """Reads a run that is finished or still training.

  Raises:
    UserError: a file of the workdir is missing or damaged.
  """
  config = load.from_config_dict(load.saved(workdir))
  folder = pathlib.Path(storage.local(workdir))
  record = json.loads((folder / "config.json").read_text("utf-8"))
  versions = record.get("versions", {})
  meta = folder / "vocabulary" / "meta.json"
  log = folder / "metrics.jsonl"
  try:
    splits = json.loads(meta.read_text("utf-8"))["splits"]
    digest = splits["train"]["sha256"]
  except (OSError, ValueError, KeyError):
    raise errors.UserError(
      f"the vocabulary in {workdir} does not say which text it was; train in "
      "another --workdir."
    ) from None
  losses: dict[int, float] = {}
  validation: dict[int, float] = {}
  for line in metrics_log.read_lines(log):
    if "step" not in line:
      continue
    if "split" in line and "nll" in line:
      validation[line["step"]] = _number(line["nll"])
    elif "loss" in line:  # A line of divergence has none.
      losses[line["step"]] = _number(line["loss"])
  return Run(config, digest, losses, validation, versions)


def _number(loss: float | None) -> float:
  """A loss that was logged; JSON has null for NaN and infinities."""
  return math.nan if loss is None else loss


def first_difference(
  config: schema.ExperimentConfig,
  reference: schema.ExperimentConfig,
  names: Iterable[str],
) -> str:
  """Describes the first of the fields in which two configurations differ."""
  for name in names:
    value = config.value_of(name)
    other = reference.value_of(name)
    if value != other:
      return f"config.{name} is {value!r}, the reference has {other!r}."
  return ""


def differs(run: Run, config: schema.ExperimentConfig, sha256: str) -> str:
  """Describes the first relevant difference from a reference, if there is one.

  A reference has a configuration and a training text.
  """
  names = (
    name
    for name in schema.all_fields()
    if name.partition(".")[0] in SECTIONS and name not in IRRELEVANT
  )
  difference = first_difference(run.config, config, names)
  if difference:
    return difference
  if not sha256 and run.config.data.name != config.data.name:
    return (
      f"its text is {run.config.data.name!r}, that of the reference "
      f"{config.data.name!r}."
    )
  if sha256 and run.data_sha256 != sha256:
    return (
      f"its training text (SHA-256 {run.data_sha256[:12]}) is not the "
      f"reference's ({sha256[:12]})."
    )
  return ""
