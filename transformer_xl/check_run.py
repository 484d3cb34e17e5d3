"""Says whether a run goes as runs of its configuration have gone.

    python -m transformer_xl.check_run --workdir=runs/quickstart \
      --reference=experiments/reference_curves/quickstart.json

compares each logged loss with the band of the reference's seeds, also while
the run goes on. The exit status is 0 on track, 1 off track, 2 cannot be judged.

    python -m transformer_xl.check_run --write --workdir=runs/a,runs/b,runs/c \
      --reference=experiments/reference_curves/NAME.json

makes a reference of runs that differ in --config.seed alone.
"""

import datetime
import platform
import sys

from absl import flags

from transformer_xl import command
from transformer_xl import errors
from transformer_xl import logged_run
from transformer_xl import reference_curve

_WORKDIR = flags.DEFINE_list(
  "workdir", None, "Folder of the run; with --write, of each.", required=True
)
_REFERENCE = flags.DEFINE_string(
  "reference", None, "The reference's file.", required=True
)
_WRITE = flags.DEFINE_bool("write", False, "Make the reference of these runs.")


def main(argv: list[str]) -> None:
  """Prints the verdict and exits with its status, or writes a reference."""
  del argv
  runs = [logged_run.read(workdir) for workdir in _WORKDIR.value]
  if _WRITE.value:
    write(runs, _REFERENCE.value)
    return
  if len(runs) > 1:
    raise errors.UserError("judge one --workdir at a time; --write takes more.")
  status, text = check(runs[0], reference_curve.load(_REFERENCE.value))
  print(text)
  sys.exit(status)


def write(runs: list[logged_run.Run], path: str) -> None:
  """Makes a reference."""
  curve = reference_curve.make(runs)
  reference_curve.save(
    curve,
    path,
    recorded=datetime.date.today().isoformat(),
    versions=runs[0].versions,
    machine=f"{platform.machine()}, Python {platform.python_version()}",
  )
  print(
    f"{path}: {len(curve.seeds)} seeds, {len(curve.steps)} lines to step "
    f"{curve.steps[-1]} of {curve.config.train.num_steps}, "
    f"{len(curve.validation_steps)} evaluations."
  )


def check(run: logged_run.Run, curve: reference_curve.Curve) -> tuple[int, str]:
  """The exit status and the text for people."""
  difference = logged_run.differs(run, curve.config, curve.data_sha256)
  if difference:
    return 2, f"cannot be judged: {difference}"
  verdicts = reference_curve.judge(run, curve)
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
  if first.value < first.low:
    hint = " Too good: does the model see what it is to predict?"
  return 1, (
    f"off track from step {first.step} on: the {_describe(first)}; "
    f"{len(outside)} of {len(verdicts)} are outside.{hint}"
  )


def _room(verdict: reference_curve.Verdict) -> float:
  """The way to the nearer edge, as a share of the band."""
  to_edge = min(verdict.value - verdict.low, verdict.high - verdict.value)
  return to_edge / (verdict.high - verdict.low)


def _describe(verdict: reference_curve.Verdict) -> str:
  return (
    f"{verdict.what} {verdict.value:.4f} at step {verdict.step}, expected "
    f"{verdict.low:.4f} to {verdict.high:.4f}"
  )


def _count(verdicts: list[reference_curve.Verdict]) -> str:
  lines = sum(verdict.what == "loss" for verdict in verdicts)
  last = max(verdict.step for verdict in verdicts)
  evaluations = len(verdicts) - lines
  more = f" and {evaluations} evaluations" if evaluations else ""
  return f"{lines} log lines{more} to step {last} are"


if __name__ == "__main__":
  command.run(main)
