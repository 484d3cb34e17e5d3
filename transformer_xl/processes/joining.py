"""Joining the other processes of a run.

JAX is imported where it is used: it must not start before processes join.
"""

import collections
import os
import re
from collections.abc import Sequence

from transformer_xl import errors
from transformer_xl.processes import others
from transformer_xl.processes import switchboard

_HOW = (
  "give every process --coordinator=HOST:PORT, --num_processes=N and its own "
  "--process_id from 0 to N-1 (a Cloud TPU slice, SLURM and Open MPI 4 need "
  "none of these), or --multihost=false to a process that is alone."
)
# Variables of the launchers that JAX knows.
_LAUNCHERS = (
  *("JAX_COORDINATOR_", "SLURM_", "OMPI_", "TPU_", "MEGASCALE_"),
  "KUBERNETES_",
)


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  multihost: bool | None = None,
  mistake: Exception | None = None,
) -> None:
  """Joins the other processes that flags or the environment name.

  JAX knows the environments of launchers. Where it finds none, and no flag says
  that there are other processes, this one is alone.

  Args:
    coordinator: HOST:PORT of process 0; None to take it from the environment.
    num_processes: Number of processes; None to take it from the environment.
    process_id: Number of this process; None to take it from the environment.
    multihost: True if there must be other processes, False to join none even
      if flags or the environment name some, None to look for them.
    mistake: why this process cannot start, if it cannot. The others are told
      so, and end; it joins none.

  Raises:
    UserError: the processes cannot join each other, or do not fit together; or
      JAX finds no device of the kind that JAX_PLATFORMS names.
    LostProcessError: other processes do not come, or one cannot start.
  """
  import jax

  if multihost is not False:
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if coordinator and not re.search(r":\d{1,5}$", coordinator):
      raise errors.UserError(f"--coordinator={coordinator} has no port: {_HOW}")
    is_named = (
      bool(multihost or coordinator)
      or num_processes is not None
      or process_id is not None
    )
    # Its own handler of SIGTERM would keep signals that come before and after
    # training: `training.preemption` stops all processes without it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
      address, count, number = _find(coordinator, num_processes, process_id)
    except Exception:  # The launchers have no common type; JAX repeats it.
      address, count, number = coordinator, num_processes, process_id
    if address and count and number is not None and 0 <= number < count > 1:
      _meet(address, number, count, mistake)
    if mistake is not None:
      return
    try:
      jax.distributed.initialize(address, count, number)
    except Exception as error:
      # A ValueError says that neither arguments nor environment are complete.
      is_alone = isinstance(error, ValueError) and not is_named
      if not is_alone:
        reason = " ".join(str(error).split()).rstrip(".")
        raise errors.UserError(
          f"cannot join other processes ({reason}): {_HOW}"
        ) from error
  _require_platforms()
  # Processes that have not joined could neither save nor stop together.
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise errors.UserError(
      f"this host is one of {jax.process_count()} of a slice: {_HOW}"
    )
  _require_same_devices(others.gather(jax.local_device_count()))


def may_be_launched() -> bool:
  """Whether the environment looks like that of a launcher, without JAX."""
  return any(name.startswith(_LAUNCHERS) for name in os.environ)


def _find(
  coordinator: str | None, num_processes: int | None, process_id: int | None
) -> tuple[str | None, int | None, int | None]:
  """Completes what names the processes from the environment."""
  # `jax.distributed.initialize` does so, and keeps it to itself.
  from jax._src import clusters

  find = clusters.ClusterEnv.auto_detect_unset_distributed_params
  timeout = int(others.JOIN_SECONDS)
  coordinator, num_processes, process_id, _ = find(
    coordinator, num_processes, process_id, None, None, timeout
  )
  return coordinator, num_processes, process_id


def _meet(
  coordinator: str,
  number: int,
  count: int,
  mistake: Exception | None,
) -> None:
  """Waits for the other processes, before JAX does."""
  reason, status = "" if mistake is None else str(mistake), 2
  if isinstance(mistake, OSError):
    reason, status = errors.refusal(mistake) or reason, 1
  others.join(coordinator, number, count, mistake=reason, status=status)


def _require_same_devices(counts: Sequence[int]) -> None:
  """Raises a UserError unless all processes have as many devices."""
  ((usual, _),) = collections.Counter(counts).most_common(1)
  unlike = [number for number, one in enumerate(counts) if one != usual]
  if unlike:
    first = unlike[0]
    raise errors.UserError(
      f"{switchboard.named(unlike)} of {len(counts)} found {counts[first]} "
      f"devices, and the others {usual}: every process needs as many (see "
      "CUDA_VISIBLE_DEVICES, XLA_FLAGS, or the hosts of the slice)."
    )


def _require_platforms() -> None:
  """Raises a UserError if JAX_PLATFORMS names what JAX cannot start."""
  import jax

  platforms = os.environ.get("JAX_PLATFORMS")
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # JAX has no type for it.
    if not platforms:
      raise
    reason = str(error).partition(" (set JAX_PLATFORMS")[0]
    reason = f" ({reason})" if reason else ""
    raise errors.UserError(
      f"JAX cannot use JAX_PLATFORMS={platforms}{reason}: install the extra of "
      "the device, '.[cuda]' or '.[tpu,gcs]', or unset that variable."
    ) from error
