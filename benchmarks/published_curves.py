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
from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.analysis.reference_curves import curve
from transformer_xl.config import load
from transformer_xl.data import token_file

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
_SEED = re.compile(r"^ +- seed : (\d+)$", re.MULTILINE)
_ROW = re.compile(r"^(\d+) ([\d.]+) ([\d.]+)$", re.MULTILINE)


def read(text: str, *, steps_per_epoch: int) -> dict[int, float]:
  """Validation losses of a log in nats, by step."""
  epochs = {
    int(epoch) * steps_per_epoch: value for epoch, value in _EPOCH.findall(text)
  }
  steps = {int(step): value for step, value in _STEP.findall(text)}
  return {step: math.log(float(ppl)) for step, ppl in (epochs | steps).items()}


def from_table(config, text: str, *, seeds: int) -> curve.Curve:
  """A reference of a table: step, mean and deviation of the perplexity.

  Raises:
    UserError: no line is a row of such a table.
  """
  if not _ROW.search(text):
    raise errors.UserError(
      "the table has no row; a row is a step, a mean and a deviation."
    )
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


def from_logs(config, texts: list[str], sha256: str) -> curve.Curve:
  """A reference of logs; two of them may have one seed.

  Raises:
    UserError: a log has no seed, or there is no step that all of them have.
  """
  every = config.train.eval_every_steps
  logs = [read(text, steps_per_epoch=every) for text in texts]
  seeds = [int(seed) for text in texts for seed in _SEED.findall(text)[:1]]
  steps = sorted(set.intersection(*map(set, logs)))
  if len(seeds) < len(logs) or not steps:
    raise errors.UserError(
      f"{len(seeds)} of {len(logs)} logs have a line '- seed : N', and all of "
      f"them have {len(steps)} validations: is each a log of train.py?"
    )
  return curve.Curve(
    config,
    sha256,
    seeds,
    [],
    np.zeros((len(logs), 0)),
    steps,
    np.array([[log[step] for step in steps] for log in logs]),
  )


def main(argv: list[str]) -> None:
  module = importlib.import_module(
    f"transformer_xl.experiments.{_EXPERIMENT.value}"
  )
  config = load.from_config_dict(module.get_config())
  if len(argv) < 2:
    raise errors.UserError("name the logs, or with --seeds the table.")
  texts = [pathlib.Path(path).read_text("utf-8") for path in argv[1:]]
  if _SEEDS.value:
    source = "NVIDIA/DeepLearningExamples, Transformer-XL, README"
    reference = from_table(config, texts[0], seeds=_SEEDS.value)
  else:
    source = "ischlag/Fast-Weight-Memory-public, 64c077f"
    folder = os.path.join(_DATA_DIR.value, config.data.name)
    meta = token_file.read_meta(folder)
    reference = from_logs(config, texts, meta["splits"]["train"]["sha256"])
  today = datetime.date.today().isoformat()
  curve.save(reference, _REFERENCE.value, recorded=today, source=source)
  count, steps = len(reference.seeds), reference.validation_steps
  print(
    f"{_REFERENCE.value}: {count} runs, validations {len(steps)}, to step "
    f"{steps[-1]}."
  )


if __name__ == "__main__":
  command_line.run(main, takes_words=True)
