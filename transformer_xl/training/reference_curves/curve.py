"""Reference curves: the losses of runs that differ only in their seed.

All seeds read the same text in the same order, so at each step their losses are
close. A run of the same configuration that leaves their band is broken, in the
code, the data or the machine.

Shapes: K steps with a log line, S seeds.
"""

import dataclasses
import json
import math
import os
from typing import Any

import numpy as np

from transformer_xl import errors
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.training.reference_curves import logged_run

# Half the width of a band: standard deviations over seeds, plus a share of the
# loss for the rounding of other devices and types.
DEVIATIONS, SHARE = 4.0, 0.005


@dataclasses.dataclass(frozen=True)
class Curve:
  """The losses of several seeds."""

  config: schema.ExperimentConfig
  data_sha256: str
  seeds: list[int]
  steps: list[int]  # [K], the last step of each mean.
  losses: np.ndarray  # [S, K]
  validation_steps: list[int]
  validation: np.ndarray  # [S, evaluations]


def make(runs: list[logged_run.Run]) -> Curve:
  """Makes a reference from runs, up to the last step that all of them have.

  Raises:
    UserError: there are too few runs, or they differ in more than the seed.
  """
  first = runs[0]
  for run in runs[1:]:
    difference = logged_run.differs(run, first.config, first.data_sha256)
    if difference:
      raise errors.UserError(
        f"the runs must be alike but for seeds: {difference}"
      )
  seeds = [run.config.seed for run in runs]
  if len(set(seeds)) < 2 or len(set(seeds)) < len(seeds):
    raise errors.UserError(
      f"a reference needs two or more different seeds: these are {seeds}; "
      "train with --config.seed=..."
    )
  every = first.config.train.log_every_steps
  last = min(max(run.losses, default=0) for run in runs)
  steps = list(range(every, last + 1, every))
  if not steps or any(step not in run.losses for run in runs for step in steps):
    raise errors.UserError(
      "the runs must have the same log lines from the first on; train them "
      "with the same --config.train.log_every_steps."
    )
  evaluated = sorted(set.intersection(*(set(run.validation) for run in runs)))
  return Curve(
    first.config,
    first.data_sha256,
    seeds,
    steps,
    np.array([[run.losses[step] for step in steps] for run in runs]),
    evaluated,
    np.array([[run.validation[step] for step in evaluated] for run in runs]),
  )


def mean_losses(run: logged_run.Run, curve: Curve) -> dict[int, np.ndarray]:
  """Mean losses of the seeds, [S], over the steps of each line of a run.

  Lines of the run that do not begin and end where lines of the reference do are
  left out.
  """
  every = run.config.train.log_every_steps
  ends = np.array(curve.steps)
  starts = np.concatenate([[0], ends[:-1]])
  lines = {}
  for step in run.losses:
    inside = (starts >= step - every) & (ends <= step)
    lengths = (ends - starts) * inside
    if lengths.sum() == every:
      lines[step] = curve.losses @ lengths / every
  return lines


def bands(
  steps: list[int], losses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Lower and upper bounds, [K], for the losses of one more seed.

  A few seeds determine their variance badly, so the variance at a step is the
  mean over all steps between half and twice that step.
  """
  mean, count = losses.mean(axis=0), len(losses)
  variance = losses.var(axis=0, ddof=1)
  at = np.array(steps)
  near = (at >= at[:, None] / 2) & (at <= at[:, None] * 2)  # [K, K]
  pooled = near @ variance / near.sum(axis=1)
  half = DEVIATIONS * np.sqrt(pooled * (1 + 1 / count)) + SHARE * mean
  return mean - half, mean + half


def save(curve: Curve, path: str, **about: Any) -> None:
  """Writes a reference with further fields `about` its origin."""
  content = {
    "format": 1,
    **about,
    "seeds": curve.seeds,
    "data_sha256": curve.data_sha256,
    "steps_covered": curve.steps[-1],
    "config": dataclasses.asdict(curve.config),
    "steps": curve.steps,
    "losses": np.round(curve.losses, 5).tolist(),
    "validation_steps": curve.validation_steps,
    "validation_losses": np.round(curve.validation, 5).tolist(),
  }
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  lines = (
    f'  "{name}": {json.dumps(value)}' for name, value in content.items()
  )
  with open(path, "w", encoding="utf-8") as file:
    file.write("{\n" + ",\n".join(lines) + "\n}\n")


def load(path: str) -> Curve:
  """Reads a reference.

  Raises:
    UserError: there is none, or it is damaged.
  """
  try:
    with open(path, encoding="utf-8") as file:
      content = json.load(file)
    config = load_lib.updated(load_lib.default(), content["config"])
    curve = Curve(
      load_lib.from_config_dict(config),
      content["data_sha256"],
      content["seeds"],
      content["steps"],
      np.array(content["losses"], float),
      content["validation_steps"],
      np.array(content["validation_losses"], float),
    )
  except FileNotFoundError:
    raise errors.UserError(
      f"there is no {path}; experiments/reference_curves/ has some, and "
      "--write makes one."
    ) from None
  except (ValueError, KeyError, TypeError, AttributeError):
    raise errors.UserError(f"{path} is damaged; make it again.") from None
  shape = (len(curve.seeds), len(curve.steps))
  if curve.losses.shape != shape or not math.isfinite(curve.losses.sum()):
    raise errors.UserError(f"{path} is damaged; make it again.")
  return curve
