"""The runs that an analysis compares: its own and `config.analysis.group`."""

import dataclasses
from collections.abc import Sequence

from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.workdir import run_history

# How all are evaluated, as the first one is; each has its own lengths.
_SHARED = ("split", "batch_size", "checkpoint", "parameters", "temperature")


def configurations(
  config: schema.ExperimentConfig, workdir: str
) -> list[tuple[str, schema.ExperimentConfig]]:
  """Each run's workdir, and the configuration that it is evaluated with.

  All read the data and the split of the first one.

  Raises:
    UserError: the configuration of a run is missing or damaged.
  """
  runs = [(workdir, config)]
  for folder in _others(config.analysis.group, workdir):
    saved = load.from_config_dict(load.saved(folder))
    values = {f"eval.{name}": getattr(config.eval, name) for name in _SHARED}
    other = dataclasses.replace(
      load.replaced(saved, values),
      data=config.data,
      analysis=config.analysis,
      mesh=config.mesh,
    )
    runs.append((folder, other))
  return runs


def _others(group: Sequence[str], workdir: str) -> list[str]:
  """The workdirs of a group, each once, and without the first run's."""
  by_place = {storage.absolute(each): each for each in group}
  by_place.pop(storage.absolute(workdir), None)
  return [*by_place.values()]


def names(group: Sequence[str], workdir: str) -> dict[str, str]:
  """How the runs are called in tables and pictures, by their workdirs."""
  return run_history.names([workdir, *_others(group, workdir)])


def checked(
  config: schema.ExperimentConfig, workdir: str
) -> list[schema.ExperimentConfig]:
  """The configurations of the runs, once all but the first can be loaded.

  The first one may still have to be trained. A run in a folder of its workdir
  may, too, if it is to be made by a comparison: it is left out.

  Raises:
    UserError: a run of the group cannot be loaded.
  """
  existing = [
    folder
    for folder in config.analysis.group
    if not storage.is_below(folder, workdir)
  ]
  analysis = dataclasses.replace(config.analysis, group=tuple(existing))
  config = dataclasses.replace(config, analysis=analysis)
  (_, first), *others = configurations(config, workdir)
  for folder, each in others:
    evaluate.check_run(each, folder)
  return [first, *(each for _, each in others)]
