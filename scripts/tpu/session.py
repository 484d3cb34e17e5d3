"""A run from its first start to its end, whatever is taken away meanwhile."""

import time

from scripts.tpu import gcloud
from scripts.tpu import job as job_lib
from scripts.tpu import queued_resource
from scripts.tpu import software
from transformer_xl import errors

FINISHED = "0"
_MISTAKE = "2"  # The exit status after a user's mistake.
_MOST_CRASHES = 3
_TRIES = 10  # To reach workers, after which the slice counts as lost.
_LATE = 10  # Looks during which workers may outlast one that failed.
RECENT = 4000  # Bytes of the log, when joining a job that runs already.


class UnpreparedError(gcloud.RefusedError):
  """The installation failed on a slice."""


def run(job: job_lib.Job, commit: str) -> None:
  """Runs a job until it is finished; asks for a new slice when one is lost.

  Raises:
    UserError: the slice is refused for good, the command is wrong, or it fails
      again and again.
  """
  slice_, crashes, unprepared = job.slice_, 0, 0
  while True:
    queued_resource.ensure(slice_)
    try:
      result = _attempt(job, commit)
    except queued_resource.GoneError as error:
      queued_resource.log(f"{slice_.name}: lost: {error}.")
      continue
    except gcloud.RefusedError as error:
      queued_resource.log(f"{slice_.name}: given up: {error}.")
      queued_resource.delete(slice_)
      is_unprepared = isinstance(error, UnpreparedError)
      unprepared = unprepared + 1 if is_unprepared else 0
      if unprepared == _MOST_CRASHES:
        raise errors.UserError(
          f"the installation failed on {unprepared} slices, last with: {error}"
        ) from None
      continue
    if result == FINISHED:
      queued_resource.log(f"{slice_.name}: the run is finished.")
      return
    if result == _MISTAKE:
      raise errors.UserError(
        f"the command was refused, see the log above: {job.command}"
      )
    if result == "stopped":  # Its machines go next, if it is a preemption.
      queued_resource.log(f"{slice_.name}: a signal stopped the run.")
      time.sleep(slice_.interval)
      continue
    crashes += 1
    if crashes == _MOST_CRASHES:
      raise errors.UserError(
        f"the run failed {crashes} times, last with status {result}: fix what "
        "the log above says and run the same command again; it resumes."
      )
    queued_resource.log(
      f"{slice_.name}: the run failed with status {result}; starting it again."
    )


def _attempt(job: job_lib.Job, commit: str) -> str:
  """Starts a job, or joins one that runs, and follows it to its end."""
  found = _states(job)
  if set(found) == {"running"}:
    queued_resource.log(f"{job.slice_.name}: the run is there; following it.")
    return follow(job, most=RECENT)
  if "running" in found:  # The others wait for one that has failed.
    job_lib.kill(job)
  try:
    software.install(job.slice_, commit)
  except gcloud.RefusedError as error:
    raise UnpreparedError(str(error)) from None
  start(job)
  return follow(job)


def _states(job: job_lib.Job) -> list[str]:
  """What became of a job on each worker; raises as `start`."""
  return queued_resource.patiently(
    job.slice_, "no answer yet", lambda: job_lib.states(job), tries=_TRIES
  )


def start_anew(job: job_lib.Job) -> None:
  """`start`, unless the job runs on all its workers.

  Raises:
    UserError: it runs, perhaps with other flags.
    GoneError, RefusedError: as `start`.
  """
  if set(_states(job)) == {"running"}:
    raise errors.UserError(
      f"the job {job.name} runs already, with the flags it was started with; "
      f"to follow it: logs {job.slice_.name} --job {job.name}"
    )
  start(job)


def start(job: job_lib.Job) -> None:
  """Starts a job on all its workers.

  Raises:
    GoneError: there are no machines.
    RefusedError: a worker was not reached in many tries.
  """
  queued_resource.patiently(
    job.slice_, "not started yet", lambda: job_lib.start(job), tries=_TRIES
  )
  queued_resource.log(f"{job.slice_.name}: {job.name} is started.")


def follow(job: job_lib.Job, most: int = 100_000) -> str:
  """Prints the log of the first worker until the job has ended.

  Args:
    job: the job.
    most: bytes of the log to print at first.

  Returns:
    "0" if it is finished, otherwise what became of it, as `job.states` says.

  Raises:
    GoneError: there are no machines.
    RefusedError: a worker was not reached in many tries.
  """
  offset = late = 0
  while True:

    def look(offset=offset, most=most):
      return job_lib.states(job), *job_lib.read(job, offset, most)

    found, text, offset = queued_resource.patiently(
      job.slice_, "no answer", look, tries=_TRIES
    )
    print(text, end="", flush=True)
    most = 100_000
    failed = sorted(set(found) - {"running", FINISHED})
    late = late + 1 if failed else 0
    if "running" not in found or late > _LATE:
      is_mistake = _MISTAKE in failed
      return _MISTAKE if is_mistake else failed[0] if failed else FINISHED
    time.sleep(job.slice_.interval)
