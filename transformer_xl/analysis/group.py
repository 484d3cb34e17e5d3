"""The runs that an analysis compares: its own and `config.analysis.group`."""

import dataclasses
from collections.abc import Iterator

from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.workdir import trained_model


def subjects(
  config: schema.ExperimentConfig, workdir: str
) -> Iterator[tuple[str, trained_model.TrainedModel]]:
  """Yields each run's workdir and model, on the first one's data and split.

  Raises:
    UserError: a run cannot be loaded.
  """
  yield workdir, evaluate.load(config, workdir)
  for folder in config.analysis.group:
    yield folder, evaluate.load(_like(config, folder), folder)


def _like(
  config: schema.ExperimentConfig, workdir: str
) -> schema.ExperimentConfig:
  """The configuration of another run, on the same data and split."""
  other = load.from_config_dict(load.saved(workdir))
  names = ("split", "batch_size", "checkpoint")
  values = {f"eval.{name}": getattr(config.eval, name) for name in names}
  shared = {
    name: getattr(config, name) for name in ("data", "analysis", "mesh")
  }
  return dataclasses.replace(load.replaced(other, values), **shared)
