"""Joining the other processes of a run, and what they tell each other.

JAX is imported where it is used: it must not start before processes join.
"""

import json
import os
from collections.abc import Callable
from typing import Any

from transformer_xl import errors
from transformer_xl import roll_call

_HOW = (
  "give every process --coordinator=HOST:PORT, --num_processes=N and its own "
  "--process_id from 0 to N-1 (a Cloud TPU slice, SLURM and Open MPI 4 need "
  "none of these), or --multihost=false to a process that is alone."
)


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  multihost: bool | None = None,
  stops_together: bool = True,
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
    stops_together: Whether JAX takes SIGTERM, to tell all processes of it
      (`training.preemption`); else it ends the process that receives it.

  Raises:
    UserError: the processes cannot join each other, or JAX finds no device of
      the kind that JAX_PLATFORMS names.
  """
  import jax

  if multihost is not False:
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if coordinator and ":" not in coordinator:
      raise errors.UserError(f"--coordinator={coordinator} has no port: {_HOW}")
    is_named = (
      bool(multihost or coordinator)
      or num_processes is not None
      or process_id is not None
    )
    jax.config.update("jax_enable_preemption_service", stops_together)
    try:
      jax.distributed.initialize(coordinator, num_processes, process_id)
    except Exception as error:  # JAX and the launchers have no common type.
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
  if jax.process_count() > 1:
    roll_call.start()


def fetch(results: Any) -> Any:
  """Copies a tree of results to the host, as whole arrays of NumPy.

  The compiler may shard results over the devices of several processes, each of
  which can read those of its own only; so all of them must call this.
  """
  import jax
  from jax.experimental import multihost_utils

  def whole(leaf: jax.Array) -> Any:
    if leaf.is_fully_addressable:
      return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.device_get(jax.tree.map(whole, results))


def read_by_first(read: Callable[[], str]) -> str:
  """What the first process reads, in all of them, which must all call this.

  Standard input and files may differ from host to host.

  Raises:
    UserError: the first process raises it.
  """
  import jax
  import numpy as np
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return read()
  found = {}
  if jax.process_index() == 0:
    try:
      found = {"text": read()}
    except errors.UserError as error:
      found = {"error": str(error)}
  content = np.frombuffer(json.dumps(found).encode(), np.uint8)
  size = multihost_utils.broadcast_one_to_all(np.int32(len(content)))
  # All processes give an array of the same size; only that of the first counts.
  shared = multihost_utils.broadcast_one_to_all(np.resize(content, int(size)))
  found = json.loads(np.asarray(shared, np.uint8).tobytes())
  if "error" in found:
    raise errors.UserError(found["error"])
  return found["text"]


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
