r"""Makes a reference of `check_run` from published logs, or from a table.

    python -m benchmarks.published_curves --experiment=ptb_published \
      --data_dir=data --reference=experiments/reference_curves/NAME.json LOG...

The logs are those of the repository ischlag/Fast-Weight-Memory-public (commit
64c077f): `transformer_xl_ptb`, with a validation after each epoch, and
`transformer_xl_wt2`, with one every 400 steps. They have the training loss with
two digits only, so the reference has validation losses alone.

    python -m benchmarks.published_curves --experiment=wt103_base_nvidia \
      --reference=experiments/reference_curves/wt103_base_nvidia.json \
      --seeds=16 benchmarks/published/nvidia_wt103_base.txt

reads perplexities by step, as mean and standard deviation over seeds. The text
is not at hand, so the reference has no hash of it.
"""

import datetime
import importlib
import math
import os
import pathlib
import re

import numpy as np
from absl import app
from absl import flags

from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.training.reference_curves import curve

_EXPERIMENT = flags.DEFINE_string(
  "experiment", None, "Configuration that the logs are of.", required=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "Prepared datasets.")
_REFERENCE = flags.DEFINE_string(
  "reference", None, "File to write.", required=True
)
_SEEDS = flags.DEFINE_integer("seeds", 0, "Seeds of a table; 0 for logs.")
_EPOCH = re.compile(r"end of epoch +(\d+) .*valid ppl +([\d.]+)")
_STEP = re.compile(r"at step +(\d+) .*valid ppl +([\d.]+)")
_ROW = re.compile(r"^(\d+) ([\d.]+) ([\d.]+)$", re.MULTILINE)


def read(text: str, *, steps_per_epoch: int) -> dict[int, float]:
  """Validation losses of a log in nats, by step."""
  epochs = {
    int(epoch) * steps_per_epoch: value for epoch, value in _EPOCH.findall(text)
  }
  steps = {int(step): value for step, value in _STEP.findall(text)}
  return {step: math.log(float(ppl)) for step, ppl in (epochs | steps).items()}


def from_table(config, text: str, *, seeds: int) -> curve.Curve:
  """A reference of a table: step, mean and deviation of the perplexity."""
  steps, means, deviations = np.array(_ROW.findall(text), float).T
  return curve.Curve(
    config,
    "",
    list(range(seeds)),
    [],
    np.zeros((seeds, 0)),
    steps.astype(int).tolist(),
    np.log(means)[None],
    deviations / means,  # Deviation of the logarithm, to first order.
  )


def from_logs(config, paths: list[str]) -> curve.Curve:
  """A reference of logs."""
  folder = os.path.join(_DATA_DIR.value, config.data.name)
  meta = token_file.read_meta(folder)
  logs = []
  for path in paths:
    with open(path, encoding="utf-8") as file:
      every = config.train.eval_every_steps
      logs.append(read(file.read(), steps_per_epoch=every))
  steps = sorted(set.intersection(*map(set, logs)))
  return curve.Curve(
    config,
    meta["splits"]["train"]["sha256"],
    list(range(len(logs))),
    [],
    np.zeros((len(logs), 0)),
    steps,
    np.array([[log[step] for step in steps] for log in logs]),
  )


def main(argv: list[str]) -> None:
  module = importlib.import_module(f"experiments.{_EXPERIMENT.value}")
  config = load.from_config_dict(module.get_config())
  if _SEEDS.value:
    table = pathlib.Path(argv[1]).read_text("utf-8")
    source = "NVIDIA/DeepLearningExamples, Transformer-XL, README"
    reference = from_table(config, table, seeds=_SEEDS.value)
  else:
    source = "ischlag/Fast-Weight-Memory-public, 64c077f"
    reference = from_logs(config, argv[1:])
  today = datetime.date.today().isoformat()
  curve.save(reference, _REFERENCE.value, recorded=today, source=source)
  count, steps = len(reference.seeds), reference.validation_steps
  print(
    f"{_REFERENCE.value}: {count} runs, {len(steps)} evaluations to step "
    f"{steps[-1]}."
  )


if __name__ == "__main__":
  app.run(main)
