"""Rows of a table: each trains in a folder of its own, and only once."""

import dataclasses
import json
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from absl import logging
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.training import loop
from transformer_xl.workdir import metrics_log


def result(
  config: schema.ExperimentConfig,
  folder: str,
  *,
  asked: dict[str, Any],
  describe: Callable[[], dict[str, Any]],
) -> dict[str, Any] | None:
  """A row's result, trained and described if that is not done yet.

  Args:
    config: what the row trains.
    folder: the row's own, where `results/row.json` keeps the result.
    asked: what else the result depends on; JSON values.
    describe: the result of the trained model, called after training.

  Returns:
    The result, or None if a signal stopped training; the same call resumes.

  Raises:
    UserError: the folder has a row of other settings.
  """
  path = os.path.join(storage.local(folder), "results", "row.json")
  wanted = settings(config, asked)
  if os.path.exists(path):
    with open(path, encoding="utf-8") as file:
      found = json.load(file)
    before, now = map(_trained, (found["asked"], wanted))
    for name, value in before.items():
      if now.get(name) != value:
        raise errors.UserError(
          f"{folder} was trained with {name}={value} and {now.get(name)} is "
          "requested; use another --workdir."
        )
    if found["asked"] == wanted:
      logging.info("%s is finished.", folder)
      return found
  if not loop.train(config, folder):
    return None
  found = {**describe(), "asked": wanted}
  metrics_log.write_json(folder, "results/row.json", found)
  storage.publish(folder)
  return found


def with_seeds(
  config: schema.ExperimentConfig, workdir: str, name: str
) -> Iterator[tuple[schema.ExperimentConfig, str]]:
  """Yields a row's configuration with each of its seeds, and its folder.

  That is WORKDIR/seed_SEED/NAME for each of `config.analysis.seeds`. Without
  any there is `config.seed` alone, in WORKDIR/NAME.
  """
  seeds = config.analysis.seeds
  if not seeds:
    yield config, os.path.join(workdir, name)
  for seed in seeds:
    folder = os.path.join(workdir, f"seed_{seed}", name)
    yield dataclasses.replace(config, seed=seed), folder


def settings(
  config: schema.ExperimentConfig, asked: dict[str, Any]
) -> dict[str, Any]:
  """What a result depends on, as read back from JSON."""
  data = dataclasses.asdict(config.data)
  for place in ("dir", "prepare"):  # Not what the data are.
    del data[place]
  groups = {
    "model": dataclasses.asdict(config.model),
    "train": dataclasses.asdict(config.train),
    "data": data,
    "seed": config.seed,
    "eval": dataclasses.asdict(config.eval),
  }
  return json.loads(json.dumps(groups | asked))


def _trained(asked: dict[str, Any]) -> dict[str, Any]:
  """The settings that a row is trained with, by name."""
  groups = ("model", "train", "data", "seed")
  kept = {name: asked[name] for name in groups}
  return traverse_util.flatten_dict(kept, sep=".")


def markdown(lines: list[list[str]]) -> str:
  """A Markdown table; the first line has the heads of the columns."""
  heads, *others = lines
  return "".join(
    f"| {' | '.join(line)} |\n"
    for line in (heads, ["---"] * len(heads), *others)
  )
