"""What losses say beside a reference: on track, off track, or neither."""

from typing import NamedTuple

import numpy as np

from transformer_xl.training.reference_curves import curve as curve_lib
from transformer_xl.training.reference_curves import logged_run

# What the validation loss depends on beside the parameters.
VALIDATION = (
  "train.eval_mem_len",
  "eval.segment_len",
  "eval.clamp_len",
  "eval.same_length",
  "eval.warmup_len",
  "eval.parameters",
)


class Verdict(NamedTuple):
  """One loss of a run beside the band."""

  what: str  # "loss" or "validation loss".
  step: int
  value: float
  low: float
  high: float

  @property
  def is_inside(self) -> bool:
    """False for what is no number, too."""
    return self.low <= self.value <= self.high


def judge(run: logged_run.Run, curve: curve_lib.Curve) -> list[Verdict]:
  """Every loss of a run that has a band, training first, by step."""
  verdicts = []
  lines = curve_lib.joined(run, curve)
  if lines:
    steps = sorted(lines)
    rows = np.array([lines[step] for step in steps]).T
    for step, low, high in zip(
      steps, *curve_lib.bands(steps, rows), strict=True
    ):
      verdicts.append(Verdict("loss", step, run.losses[step], low, high))
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
        verdicts.append(Verdict("validation loss", step, value, low, high))
  return verdicts


def compare(run: logged_run.Run, curve: curve_lib.Curve) -> tuple[int, str]:
  """The exit status and the text for people."""
  difference = logged_run.differs(run, curve.config, curve.data_sha256)
  if difference:
    return 2, f"cannot be judged: {difference}"
  verdicts = judge(run, curve)
  if not verdicts:
    return 2, (
      "cannot be judged: the run has no log line that begins and ends where "
      f"the reference's do, every {curve.steps[0]} steps to {curve.steps[-1]}; "
      "wait for it, or set --config.train.log_every_steps."
    )
  outside = sorted(
    (v for v in verdicts if not v.is_inside), key=lambda v: v.step
  )
  if not outside:
    closest = min(verdicts, key=_room)
    return 0, (
      f"on track: {_count(verdicts)} within the band of {len(curve.seeds)} "
      f"seeds; closest to its edge is the {_describe(closest)}."
    )
  first = outside[0]
  hint = ""
  if first.value < first.low - (first.high - first.low):
    hint = " Too good: does the model see what it is to predict?"
  return 1, (
    f"off track from step {first.step} on: the {_describe(first)}; "
    f"{len(outside)} of {len(verdicts)} are outside.{hint}"
  )


def _room(verdict: Verdict) -> float:
  """The way to the nearer edge, as a share of the band."""
  to_edge = min(verdict.value - verdict.low, verdict.high - verdict.value)
  return to_edge / (verdict.high - verdict.low)


def _describe(verdict: Verdict) -> str:
  return (
    f"{verdict.what} {verdict.value:.4f} at step {verdict.step}, expected "
    f"{verdict.low:.4f} to {verdict.high:.4f}"
  )


def _count(verdicts: list[Verdict]) -> str:
  lines = sum(verdict.what == "loss" for verdict in verdicts)
  last = max(verdict.step for verdict in verdicts)
  evaluations = len(verdicts) - lines
  more = f" and {evaluations} evaluations" if evaluations else ""
  return f"{lines} log lines{more} to step {last} are"
