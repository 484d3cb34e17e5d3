"""The runs that an analysis compares: its own and `config.analysis.group`."""

import dataclasses
from collections.abc import Iterator

from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.workdir import trained_model

# How all are evaluated, as the first one is; each has its own lengths.
_SHARED = ("split", "batch_size", "checkpoint", "parameters", "temperature")


def subjects(
  config: schema.ExperimentConfig, workdir: str
) -> Iterator[tuple[str, trained_model.TrainedModel]]:
  """Yields each run's workdir and model, on the first one's data and split.

  Raises:
    UserError: a run cannot be loaded.
  """
  runs = [(workdir, config)]
  for folder in config.analysis.group:
    saved = load.from_config_dict(load.saved(folder))
    values = {f"eval.{name}": getattr(config.eval, name) for name in _SHARED}
    other = dataclasses.replace(
      load.replaced(saved, values),
      data=config.data,
      analysis=config.analysis,
      mesh=config.mesh,
    )
    runs.append((folder, other))
  for folder, each in runs:
    yield folder, evaluate.load(each, folder)
