"""Compares a run's losses with a reference: on track, off track, or neither."""

from typing import NamedTuple

import numpy as np

from transformer_xl.training.reference_curves import curve as curve_lib
from transformer_xl.training.reference_curves import logged_run

# Fields that affect the validation loss, apart from the parameters.
VALIDATION = (
  "train.eval_mem_len",
  "eval.segment_len",
  "eval.clamp_len",
  "eval.same_length",
  "eval.warmup_len",
  "eval.parameters",
)


class Comparison(NamedTuple):
  """One loss of a run, and the band of the reference at that step."""

  what: str  # "loss" or "validation loss".
  step: int
  value: float
  low: float
  high: float

  @property
  def is_inside(self) -> bool:
    """Whether the loss is in the band; False if it is not a number."""
    return self.low <= self.value <= self.high


def comparisons(
  run: logged_run.Run, curve: curve_lib.Curve
) -> list[Comparison]:
  """All losses of a run that have a band: of training, then of validation."""
  found = []
  lines = curve_lib.mean_losses(run, curve)
  if lines:
    steps = sorted(lines)
    rows = np.array([lines[step] for step in steps]).T
    for step, low, high in zip(
      steps, *curve_lib.bands(steps, rows), strict=True
    ):
      found.append(Comparison("loss", step, run.losses[step], low, high))
  fields, others = (
    logged_run.fields(run.config),
    logged_run.fields(curve.config),
  )
  if curve.validation_steps and all(
    fields[name] == others[name] for name in VALIDATION
  ):
    bands = curve_lib.bands(curve.validation_steps, curve.validation)
    for step, low, high in zip(curve.validation_steps, *bands, strict=True):
      if step in run.validation:
        value = run.validation[step]
        found.append(Comparison("validation loss", step, value, low, high))
  return found


def compare(run: logged_run.Run, curve: curve_lib.Curve) -> tuple[int, str]:
  """Returns the exit status and one line of text."""
  difference = logged_run.differs(run, curve.config, curve.data_sha256)
  if difference:
    return 2, f"cannot be judged: {difference}"
  found = comparisons(run, curve)
  if not found:
    return 2, (
      "cannot be judged: the run has no log line that begins and ends where "
      f"the reference's do, every {curve.steps[0]} steps to {curve.steps[-1]}; "
      "wait for it, or set --config.train.log_every_steps."
    )
  outside = sorted(
    (one for one in found if not one.is_inside), key=lambda one: one.step
  )
  if not outside:
    closest = min(found, key=_room)
    return 0, (
      f"on track: {_count(found)} within the band of {len(curve.seeds)} "
      f"seeds; closest to its edge is the {_describe(closest)}."
    )
  first = outside[0]
  hint = ""
  if first.value < first.low - (first.high - first.low):
    hint = " Too good: does the model see what it is to predict?"
  return 1, (
    f"off track from step {first.step} on: the {_describe(first)}; "
    f"{len(outside)} of {len(found)} are outside.{hint}"
  )


def _room(one: Comparison) -> float:
  """Distance to the nearer bound, as a share of the band."""
  to_edge = min(one.value - one.low, one.high - one.value)
  return to_edge / (one.high - one.low)


def _describe(one: Comparison) -> str:
  return (
    f"{one.what} {one.value:.4f} at step {one.step}, expected "
    f"{one.low:.4f} to {one.high:.4f}"
  )


def _count(found: list[Comparison]) -> str:
  lines = sum(one.what == "loss" for one in found)
  last = max(one.step for one in found)
  evaluations = len(found) - lines
  more = f" and {evaluations} evaluations" if evaluations else ""
  return f"{lines} log lines{more} to step {last} are"
