"""Reference curves: the losses of runs that differ only in their seed.

All seeds read the same text in the same order, so at each step their losses are
close. A run of the same configuration that leaves their band is broken, in the
code, the data or the machine: it is off track.

Shapes: K steps with a log line, S seeds.
"""

import dataclasses
import json
import operator
import os
from typing import NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl.analysis.reference_curves import logged_run
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.model import nats

# Half the width of a band: standard deviations over seeds, plus a share of the
# loss for the rounding of other devices and types.
DEVIATIONS = 4.0
SHARE = 0.005
# Fields that affect the validation loss, apart from the parameters.
VALIDATION = (
  "eval.segment_len",
  "eval.clamp_len",
  "eval.same_length",
  "eval.warmup_len",
  "eval.context_len",
  "eval.parameters",
)


class Curve(NamedTuple):
  """The losses of several seeds."""

  config: schema.ExperimentConfig
  data_sha256: str  # "" if unknown; then the name of the dataset counts.
  seeds: list[int]
  steps: list[int]  # [K], the last step of each mean.
  losses: np.ndarray  # [S, K]
  validation_steps: list[int]
  validation_losses: np.ndarray  # [S, evaluations], or [1, ...]: their mean.
  # Standard deviation over seeds, [evaluations], where only that is published.
  validation_deviations: np.ndarray | None = None


class Comparison(NamedTuple):
  """One loss of a run, and the band of the reference at that step."""

  what: str  # "loss" or "validation loss".
  step: int
  value: float
  low: float
  high: float

  @property
  def room(self) -> float:
    """Distance to the nearer bound, as a share of the band."""
    to_edge = min(self.value - self.low, self.high - self.value)
    return to_edge / (self.high - self.low)

  @property
  def side(self) -> str:
    """Where the loss lies: within, below, above or, if NaN, outside."""
    if self.low <= self.value <= self.high:
      return "within"
    if self.value < self.low:
      return "below"
    return "above" if self.value > self.high else "outside"

  def __str__(self) -> str:
    value, low, high = map(nats.perplexity, (self.value, self.low, self.high))
    return (
      f"the {self.what} {self.value:.4f} (perplexity {value:.2f}) at step "
      f"{self.step} is {self.side} {self.low:.4f} to {self.high:.4f} "
      f"({low:.2f} to {high:.2f})"
    )


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
        f"the runs must differ in their seeds alone: {difference}"
      )
  seeds = [run.config.seed for run in runs]
  if len(set(seeds)) < max(2, len(seeds)):
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
  evaluated = sorted(set.intersection(*[set(run.validation) for run in runs]))
  return Curve(
    first.config,
    first.data_sha256,
    seeds,
    steps,
    np.array([[run.losses[step] for step in steps] for run in runs]),
    evaluated,
    np.array([[run.validation[step] for step in evaluated] for run in runs]),
  )


def save(curve: Curve, path: str, **about: object) -> None:
  """Writes a reference; `about` has further fields, on its origin."""
  content: dict[str, object] = {
    "format": 1,
    **about,
    "seeds": curve.seeds,
    "data_sha256": curve.data_sha256,
    "config": dataclasses.asdict(curve.config),
    "steps": curve.steps,
    "losses": np.round(curve.losses, 5).tolist(),
    "validation_steps": curve.validation_steps,
    "validation_losses": np.round(curve.validation_losses, 5).tolist(),
  }
  if curve.validation_deviations is not None:
    rounded = np.round(curve.validation_deviations, 5).tolist()
    content["validation_deviations"] = rounded
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
    config = load_lib.updated(load_lib.default(), content["config"], path)
    content["config"] = load_lib.from_config_dict(config)
    arrays = ("losses", "validation_losses", "validation_deviations")
    for name in content.keys() & set(arrays):
      content[name] = np.array(content[name], float)
    curve = Curve(**{name: content.get(name) for name in Curve._fields})
    _check(curve)
  except FileNotFoundError:
    raise errors.UserError(
      f"there is no {path}; experiments/reference_curves/ has some, and "
      "--write makes one."
    ) from None
  except (ValueError, KeyError, TypeError, AttributeError):
    raise errors.UserError(f"{path} is damaged; make it again.") from None
  return curve


def _check(curve: Curve) -> None:
  """Raises ValueError unless each run has a finite loss for each step."""
  num_runs = len(curve.seeds)
  num_validations = len(curve.validation_steps)
  deviations = curve.validation_deviations
  if curve.losses.shape != (num_runs, len(curve.steps)):
    raise ValueError("there are not as many losses as steps")
  for array in (curve.validation_losses, deviations):
    if array is not None and array.shape[-1:] != (num_validations,):
      raise ValueError("there are not as many validations as steps")
    if array is not None and not np.isfinite(array).all():
      raise ValueError("a validation is not finite")
  if not np.isfinite(curve.losses).all():
    raise ValueError("a loss is not finite")


def compare(run: logged_run.Run, curve: Curve) -> tuple[int, str]:
  """Returns one line of text with the exit status: 0 if on track, 1 if off."""
  difference = logged_run.differs(run, curve.config, curve.data_sha256)
  if difference:
    return 2, f"cannot be compared: {difference}"
  found = _comparisons(run, curve)
  if not found:
    return 2, f"cannot be compared yet: {_expected(run, curve)}"
  outside = [one for one in found if one.side != "within"]
  if not outside:
    trained = sum(one.what == "loss" for one in found)
    return 0, (
      f"on track to step {max(one.step for one in found)}: losses of training "
      f"({trained}) and of validation ({len(found) - trained}) are within the "
      f"band of {len(curve.seeds)} runs. Closest to its edge, "
      f"{min(found, key=lambda one: one.room)}."
    )
  first = min(outside, key=lambda one: one.step)
  hint = ""
  if first.value < first.low - (first.high - first.low):
    hint = " Too good: does the model see what it is to predict?"
  return 1, (
    f"off track from step {first.step} on: {first}; {len(outside)} of "
    f"{len(found)} losses are outside.{hint}"
  )


def _expected(run: logged_run.Run, curve: Curve) -> str:
  """Explains why a run has no loss to compare with the reference."""
  steps = curve.steps
  name = "log_every_steps"
  if not steps:
    difference = logged_run.first_difference(
      run.config, curve.config, VALIDATION
    )
    if difference:
      return f"the reference has validation losses alone, and {difference}"
    steps = curve.validation_steps
    name = "eval_every_steps"
  return (
    f"the reference has losses every {steps[0]} steps to {steps[-1]}, and the "
    f"run none of them; wait, or set --config.train.{name}={steps[0]}."
  )


def _comparisons(run: logged_run.Run, curve: Curve) -> list[Comparison]:
  """All losses of a run that have a band: of training, then of validation."""
  found = []
  lines = _mean_losses(run, curve)
  if lines:
    rows = np.array(list(lines.values())).T
    bands = _bands(list(lines), rows, rows.std(axis=0, ddof=1), len(rows))
    found += _compared("loss", run.losses, list(lines), bands)
  fields = operator.attrgetter(*VALIDATION)
  if curve.validation_steps and fields(run.config) == fields(curve.config):
    steps = curve.validation_steps
    rows = curve.validation_losses
    deviations = curve.validation_deviations
    if deviations is None:
      deviations = rows.std(axis=0, ddof=1)
    bands = _bands(steps, rows, deviations, len(curve.seeds))
    found += _compared("validation loss", run.validation, steps, bands)
  return found


def _compared(
  what: str,
  values: dict[int, float],
  steps: list[int],
  bands: tuple[np.ndarray, np.ndarray],
) -> list[Comparison]:
  """The losses of a run at the steps that it has, each with its band."""
  return [
    Comparison(what, step, values[step], low, high)
    for step, low, high in zip(steps, *bands, strict=True)
    if step in values
  ]


def _mean_losses(run: logged_run.Run, curve: Curve) -> dict[int, np.ndarray]:
  """Mean losses of the seeds, [S], over the steps of each line of a run.

  Lines of the run that do not begin and end where lines of the reference do are
  left out.
  """
  every = run.config.train.log_every_steps
  ends = np.array(curve.steps)
  starts = np.array([0, *ends])[: len(ends)]
  lines = {}
  for step in sorted(run.losses):
    lengths = (ends - starts) * ((starts >= step - every) & (ends <= step))
    if lengths.sum() == every:
      lines[step] = curve.losses @ lengths / every
  return lines


def _bands(
  steps: list[int], losses: np.ndarray, deviations: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Lower and upper bounds, [K], for the losses of one seed beside `count`.

  A few seeds determine their variance badly, so the variance at a step is the
  mean over all steps between half and twice that step.
  """
  mean = losses.mean(axis=0)
  variance = deviations**2
  at = np.array(steps)
  near = (at >= at[:, None] / 2) & (at <= at[:, None] * 2)  # [K, K]
  pooled = near @ variance / near.sum(axis=1)
  half = DEVIATIONS * np.sqrt(pooled * (1 + 1 / count)) + SHARE * mean
  return mean - half, mean + half
