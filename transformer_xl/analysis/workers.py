"""Workers that share a comparison: each does what nobody else is doing.

Any number of processes run the same command in the same workdir, on a disk or
in a bucket that all see. A worker takes a trial by a lease in its folder, so
that a killed one loses the minutes since its last checkpoint. A run of several
processes is one worker and shares with no other.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import jax
from absl import logging

from transformer_xl.analysis import plans as plans_lib
from transformer_xl.analysis import trials
from transformer_xl.workdir import lease

# Between two looks at what other workers have done.
_LOOKS_AFTER_SECONDS = 5.0


class Worker:
  """What one process knows of a comparison, and does for it."""

  def __init__(self, plans: Sequence[plans_lib.Plan], measure: trials.Measure):
    """Does nothing yet.

    Args:
      plans: of all variants, in the order of the table.
      measure: measures a trained model.
    """
    self._plans = plans
    self._measure = measure
    self._leases = lease.Leases()
    # By folder and split; read once, since what is measured stays.
    self._measured: dict[tuple[str, str], trials.Measured] = {}

  def known(self, job: plans_lib.Job) -> trials.Measured | None:
    """What this or another worker has found; None before that."""
    key = (job.trial.folder, job.split)
    if key not in self._measured:
      found = trials.known(
        job.trial,
        split=job.split,
        lengths=job.lengths,
        may_diverge=job.plan.chooses_rate,
      )
      if found is None:
        return None
      self._measured[key] = found
    return self._measured[key]

  def progress(self, plan: plans_lib.Plan) -> plans_lib.Progress:
    """How far a variant is, as this process knows."""
    return plans_lib.progress(plan, self.known)

  def seconds(self, plan: plans_lib.Plan) -> list[float]:
    """Seconds that each trial of a variant took, whoever trained it."""
    name = plan.variant.name
    longest: dict[str, float] = {}
    for (folder, _), found in self._measured.items():
      if os.path.basename(folder) == name:
        longest[folder] = max(longest.get(folder, 0.0), found.seconds)
    return [*longest.values()]

  def run(self, on_finished: Callable[[], None]) -> None:
    """Does what is to be done until nothing is left, also for others.

    Args:
      on_finished: called when a variant is finished by a trial of this worker.

    Raises:
      UserError: a trial cannot be trained or measured.
      StoppedError: a signal stopped training; the same command resumes there.
    """
    is_waiting = False
    self._say_what_is_left()
    while jobs := self._jobs():
      for job in jobs:
        with self.holding(job.trial.folder, ".trial.lock") as is_ours:
          if not is_ours:
            continue
          is_waiting = False
          if self.known(job) is None:  # Else another one was first.
            self._do(job)
        if not self.progress(job.plan).jobs:
          on_finished()
        break
      else:
        if not is_waiting:
          names = sorted({job.plan.variant.name for job in jobs})
          logging.info("Waiting for other workers: %s.", ", ".join(names))
        is_waiting = True
        time.sleep(self._between_looks())

  @contextlib.contextmanager
  def holding(self, folder: str, name: str) -> Iterator[bool]:
    """Whether nobody else holds a lease in a folder; holds it in the block."""
    if jax.process_count() > 1:
      yield True
      return
    with self._leases.take(lease.path_in(folder, name)) as is_ours:
      yield is_ours

  @contextlib.contextmanager
  def waiting_for(self, folder: str, name: str) -> Iterator[None]:
    """Holds a lease in a folder, as soon as nobody else does."""
    if jax.process_count() > 1:
      yield
      return
    with self._leases.wait(
      lease.path_in(folder, name),
      until="written the results",
      look_seconds=self._between_looks(),
    ):
      yield

  def _between_looks(self) -> float:
    return min(_LOOKS_AFTER_SECONDS, lease.LEFT_AFTER_SECONDS / 4)

  def _jobs(self) -> list[plans_lib.Job]:
    """All that could be done now, in the order of the variants."""
    return [job for plan in self._plans for job in self.progress(plan).jobs]

  def _do(self, job: plans_lib.Job) -> None:
    trials.check(job.trial)
    measured = trials.measure(
      job.trial,
      split=job.split,
      lengths=job.lengths,
      measure_model=self._measure,
      may_diverge=job.plan.chooses_rate,
    )
    self._measured[job.trial.folder, job.split] = measured
    text = "training diverged"
    if measured.losses:
      text = f"{job.split} loss {job.plan.loss(measured):.4f}"
    logging.info(
      "%s, learning rate %g, seed %d: %s.",
      job.plan.variant.name,
      job.rate,
      job.seed,
      text,
    )
    self._say_what_is_left()

  def _say_what_is_left(self) -> None:
    """Logs how many trials are to be trained, and how long one worker takes.

    A variant of which no trial is finished yet takes as long as the others do.
    """
    left = [self.progress(plan) for plan in self._plans]
    least = sum(each.least for each in left)
    most = sum(each.most for each in left)
    if not most:
      return
    by_plan = [self.seconds(plan) for plan in self._plans]
    typical = [statistics.median(each) for each in by_plan if each]
    text = "how long is known after the first"
    if typical:
      each_takes = [statistics.median(each or typical) for each in by_plan]
      text = _hours(
        sum(
          one.least * takes for one, takes in zip(left, each_takes, strict=True)
        ),
        sum(
          one.most * takes for one, takes in zip(left, each_takes, strict=True)
        ),
      )
      text += " to go for one worker"
    logging.info(
      "Trials: %d done, %s left, %s.",
      len({folder for folder, _ in self._measured}),
      f"{least}" if least == most else f"{least} to {most}",
      text,
    )


def _hours(least: float, most: float) -> str:
  """A range of seconds in words, in a unit that suits it."""
  size, unit, digits = 3600.0, "h", 1
  if most < 5400:
    size, unit, digits = 60.0, "min", 0
  low, high = f"{least / size:.{digits}f}", f"{most / size:.{digits}f}"
  return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
