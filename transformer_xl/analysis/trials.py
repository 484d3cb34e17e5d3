"""Trials: each trains in a folder of its own and is measured, both only once.

`results/trial.json` in the folder has the settings that the trial is trained
with, written before the first update, and each measurement with the settings
that it depends on. A command that was interrupted goes on where it stopped.
"""

import dataclasses
import datetime
import functools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from absl import logging
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import variants
from transformer_xl.config import extensions
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.config import training_fields
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.model import network
from transformer_xl.training import initial_parameters
from transformer_xl.training import loop
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

# Mean losses in nats per token, by a length of memory or attention in tokens.
Losses = dict[int, float]


class Measurement(NamedTuple):
  """What is measured of a trained model.

  Attributes:
    losses: the mean loss at each length.
    bins: at each length, a number for each bin: the share of right answers by
      distance (answers.py) or the mean loss by position (documents.py). Empty
      where nothing but losses is measured.
  """

  losses: Losses
  bins: dict[int, list[float]]


# What is kept of a trial, and its parts.
_FILE = "results/trial.json"
_KEPT = ("trained_with", "measured", "seconds")

Measure = Callable[[trained_model.TrainedModel, Sequence[int]], Measurement]


class Measured(NamedTuple):
  """What is known of a trial that was trained and measured."""

  losses: Losses  # Empty if training diverged.
  num_parameters: int
  checkpoint_step: int
  bins: dict[int, list[float]]  # As in Measurement.
  # What training and measuring took by then, in all commands together.
  seconds: float
  # Of the code, the device and the day, when the trial was measured.
  commit: str | None
  device: str
  date: str


def check(trial: variants.Trial) -> None:
  """Raises a UserError if the folder has a trial of other settings.

  Also if a new trial would start from parameters that cannot be read.
  """
  before = _read(trial.folder)["trained_with"]
  _require_same(trial, before)
  if not before and trial.config.train.init_from:
    initial_parameters.check(trial.config.recipe, trial.config.data.dataset_dir)


def _require_same(trial: variants.Trial, before: metrics_log.Json) -> None:
  """Raises a UserError if a folder's trial was trained with other settings."""
  now = _trained_with(trial.config.recipe, trial.config.data)
  for name, value in before.items():
    if now.get(name) != value:
      raise errors.UserError(
        f"{trial.folder} was trained with {name}={value} and {now.get(name)} "
        "is requested; use another --workdir."
      )


def known(
  trial: variants.Trial,
  *,
  split: str,
  lengths: Sequence[int],
  may_diverge: bool,
) -> Measured | None:
  """What `measure` has found before, in this process or in another one.

  Raises:
    UserError: the folder has a trial of other settings.
  """
  accepted = [_asked(trial, split, lengths)]
  if may_diverge:
    accepted.append(_if_diverged(trial))
  kept = _read(trial.folder)
  for before in kept["measured"]:
    if before["asked"] in accepted:
      _require_same(trial, kept["trained_with"])
      return _measured_before(before)
  return None


def measure(
  trial: variants.Trial,
  *,
  split: str,
  lengths: Sequence[int],
  measure_model: Measure,
  may_diverge: bool,
) -> Measured:
  """Trains a trial and measures its loss on a split, if that is to be done.

  Args:
    trial: what is trained, and where.
    split: the split that the model reads, in the place of `eval.split`.
    lengths: lengths of memory or attention to measure at.
    measure_model: the measurement.
    may_diverge: divergence is a result and is not raised.

  Raises:
    StoppedError: a signal stopped training, which the same call resumes.
  """
  before = known(trial, split=split, lengths=lengths, may_diverge=may_diverge)
  if before is not None:
    logging.info("%s is finished on %s.", trial.folder, split)
    return before

  kept = _read(trial.folder)
  kept["trained_with"] = _trained_with(trial.config.recipe, trial.config.data)
  _write(trial.folder, kept)
  logging.info("Training and measuring %s.", trial.folder)
  start = time.perf_counter()
  asked = _asked(trial, split, lengths)
  try:
    loop.train(trial.config, trial.folder)
  except errors.DivergenceError as error:
    if not may_diverge:
      raise
    logging.warning("%s is left out: %s", trial.folder, error)
    asked = _if_diverged(trial)
    found = Measured(
      {},
      num_parameters=0,
      checkpoint_step=0,
      bins={},
      seconds=kept["seconds"] + time.perf_counter() - start,
      **provenance(),
    )
  except errors.StoppedError:
    kept["seconds"] += time.perf_counter() - start
    _write(trial.folder, kept)
    raise
  else:
    config = load.replaced(trial.config, {"eval.split": split})
    model = evaluate.load(config, trial.folder)
    measurement = measure_model(model, lengths)
    found = Measured(
      losses={
        length: _finite_or_infinite(loss)
        for length, loss in measurement.losses.items()
      },
      num_parameters=network.num_parameters(model.params),
      checkpoint_step=model.step,
      bins={
        length: [*map(_finite_or_infinite, values)]
        for length, values in measurement.bins.items()
      },
      seconds=kept["seconds"] + time.perf_counter() - start,
      **provenance(),
    )
  kept["seconds"] = found.seconds
  kept["measured"].append({"asked": asked, **found._asdict()})
  _write(trial.folder, kept)
  return found


def _finite_or_infinite(loss: float) -> float:
  """The loss, or infinity, as it is read back, if it is not a number."""
  return loss if math.isfinite(loss) else math.inf


def _asked(
  trial: variants.Trial, split: str, lengths: Sequence[int]
) -> metrics_log.Json:
  """The settings that a measurement depends on."""
  config = load.replaced(trial.config, {"eval.split": split})
  return _as_read(
    {
      "eval": dataclasses.asdict(config.eval),
      "lengths": [*lengths],
      "text": _sha256(config.data.dataset_dir, split),
    }
  )


def _if_diverged(trial: variants.Trial) -> metrics_log.Json:
  """The settings that it depends on whether training diverges."""
  return _as_read(
    {
      "divergence": dataclasses.asdict(trial.config.divergence),
      "text": _sha256(trial.config.data.dataset_dir, "train"),
    }
  )


def _measured_before(known: metrics_log.Json) -> Measured:
  """A measurement as JSON has it, where null is a loss that is infinite."""
  losses = {
    int(length): math.inf if nll is None else nll
    for length, nll in known["losses"].items()
  }
  bins = {
    int(length): [math.inf if value is None else value for value in values]
    for length, values in known["bins"].items()
  }
  kept = {name: known[name] for name in Measured._fields}
  return Measured(**kept | {"losses": losses, "bins": bins})


def provenance() -> metrics_log.Json:
  """What a measurement states of the code, the device and the day."""
  return {
    "commit": _commit(),
    "device": jax.devices()[0].device_kind,
    "date": datetime.date.today().isoformat(),
  }


@functools.cache  # The code that runs is that of the start.
def _commit() -> str | None:
  return run_record.git_commit()


def _sha256(dataset_dir: str, split: str) -> str:
  """Identifies the text of a split, which may be prepared again."""
  meta = token_file.read_meta(dataset_dir)
  return meta["splits"][split]["sha256"]


def _trained_with(
  recipe: schema.Recipe, data: schema.DataConfig
) -> metrics_log.Json:
  """The settings that the parameters of a trial depend on, by name."""
  text = dataclasses.asdict(data)
  for place in ("dir", "prepare"):  # Not what the data are.
    del text[place]
  text["train_sha256"] = _sha256(data.dataset_dir, "train")
  groups = {**dataclasses.asdict(recipe), "data": text}
  # The fields of layers that the model does not have may come and go.
  for group in schema.unused_groups(recipe.model, recipe.train):
    groups[group.section].pop(group.name, None)
  named = traverse_util.flatten_dict(groups, sep=".")
  for name in (*training_fields.ONLY_LOGGED, "train.finish_with"):
    del named[name]
  for extension in extensions.needed(recipe.model, recipe.train):
    for part in extension.provides:
      named[f"SHA-256 of {part}"] = extension.sha256
  return _as_read(named)


def _as_read(values: dict[str, object]) -> metrics_log.Json:
  """The values as they are read back from JSON, which has no tuples."""
  return json.loads(json.dumps(values))


def _read(folder: str) -> metrics_log.Json:
  """What is kept of a trial.

  Raises:
    UserError: the file is damaged.
  """
  storage.refresh(folder, _FILE)  # Another worker may have written it.
  path = os.path.join(storage.local(folder), _FILE)
  if not os.path.exists(path):
    return {"trained_with": {}, "measured": [], "seconds": 0.0}
  try:
    with open(path, encoding="utf-8") as file:
      kept = json.load(file)
    return {name: kept[name] for name in _KEPT}
  except (ValueError, LookupError, TypeError, RecursionError) as error:
    raise errors.UserError(
      f"{folder}/{_FILE} is damaged ({error}): remove {folder}, "
      "which is trained again then, or use another --workdir."
    ) from None


def _write(folder: str, kept: metrics_log.Json) -> None:
  metrics_log.write_json(folder, _FILE, kept)
  storage.publish(folder)
