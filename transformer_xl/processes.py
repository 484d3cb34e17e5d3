"""Joining the other processes of a run, before JAX uses its devices.

`jax.distributed.initialize` finds the others by the environment, but it is
called only where several are named: a process that is alone needs no
coordination, and waits for nobody. The launchers are in JAX's order.
"""

import importlib.util
import os
import re
from typing import NamedTuple

from absl import logging

from transformer_xl import errors

_HOW = (
  "give every process --coordinator=HOST:PORT, --num_processes=N and its own "
  "--process_id from 0 to N-1; a Cloud TPU slice, SLURM and Open MPI 4 need "
  "none of these."
)
_ELSE = f"{_HOW} --multihost=false starts a process that is alone."
_WORKERS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_SLICES = (
  *("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES"),
  "MEGASCALE_SLICE_ID",
)
_METADATA_SECONDS = 5.0


class Launcher(NamedTuple):
  """What started several processes."""

  name: str
  method: str | None  # JAX's `cluster_detection_method`.
  num_processes: int | None  # None if only the launcher can say.


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  multihost: bool | None = None,
) -> None:
  """Joins the other processes that flags or the environment name.

  Args:
    coordinator: HOST:PORT of process 0; None to take it from the environment.
    num_processes: how many there are, likewise.
    process_id: the number of this one, likewise.
    multihost: whether there are others; None to ask the environment.

  Raises:
    UserError: flags or environment are incomplete or contradict each other.
  """
  import jax

  numbers = (num_processes, process_id)
  if multihost is not False:
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
  if coordinator:
    if not re.fullmatch(r".+:\d+", coordinator):
      raise errors.UserError(f"--coordinator={coordinator} has no port: {_HOW}")
    _initialize(coordinator, *numbers)
  elif numbers != (None, None):
    raise errors.UserError(
      f"--num_processes and --process_id need --coordinator: {_HOW}"
    )
  elif multihost is not False and (found := launcher()):
    logging.info(
      "Joining %s processes, as %s says.",
      *(found.num_processes or "several", found.name),
    )
    _initialize(cluster_detection_method=found.method)
  elif multihost:
    _initialize()
  elif jax.process_count() > 1:  # They could neither save nor stop together.
    raise errors.UserError(
      f"this host is one of {jax.process_count()} of a slice: {_HOW}"
    )


def _initialize(*arguments, **named) -> None:
  import jax

  try:
    jax.distributed.initialize(*arguments, **named)
  except (ValueError, RuntimeError) as error:
    reason = " ".join(str(error).split()).rstrip(".")
    raise errors.UserError(
      f"cannot join other processes ({reason}): {_HOW}"
    ) from error


def launcher() -> Launcher | None:
  """What has started several processes, of which this is one; None if alone.

  Raises:
    UserError: some of the variables that JAX needs are missing.
  """
  for find in (_open_mpi, _slurm, _tpu, _kubernetes):
    found = find()
    if found and found.num_processes != 1:
      return found
  return None


def _open_mpi() -> Launcher | None:
  count = _number("OMPI_COMM_WORLD_SIZE", 1)
  rank = "OMPI_COMM_WORLD_RANK"
  if count > 1:  # The address is named by version 4 only.
    local = "OMPI_COMM_WORLD_LOCAL_RANK"
    _require("Open MPI", "OMPI_MCA_orte_hnp_uri", rank, local)
  _require_below(rank, count, "OMPI_COMM_WORLD_SIZE")
  return Launcher("Open MPI", "ompi", count)


def _slurm() -> Launcher | None:
  """A task of a job step; a batch script is alone, whatever it may start."""
  count, rank = _number("SLURM_NTASKS", 1), "SLURM_PROCID"
  if not _number(rank, 0) and "SLURM_STEP_NODELIST" not in os.environ:
    return None
  if count > 1:
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", rank, "SLURM_LOCALID")
    _require("SLURM", *names)
  _require_below(rank, count, "SLURM_NTASKS")
  return Launcher("SLURM", "slurm", count)


def _tpu() -> Launcher | None:
  """A host of a Cloud TPU slice, by variables (GKE) or by its metadata."""
  import jax

  # JAX puts the TPU in front where there are chips and nobody says otherwise.
  platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
  if "tpu" not in (platforms or ""):
    return None
  names = [name for name in _WORKERS if name in os.environ]
  if not names:
    return _tpu_by_metadata()
  hosts, slices = len(os.environ[names[0]].split(",")), 1
  if any(name in os.environ for name in _SLICES):
    _require("several TPU slices", *_SLICES)
    slices = _number("MEGASCALE_NUM_SLICES", 1)
    _require_below("MEGASCALE_SLICE_ID", slices, "MEGASCALE_NUM_SLICES")
  if hosts > 1:
    _require("a TPU slice", "TPU_WORKER_ID")
    _require_below("TPU_WORKER_ID", hosts, names[0])
  return Launcher("a Cloud TPU", "gketpu", hosts * slices)


def _tpu_by_metadata() -> Launcher | None:
  if "TPU_SKIP_MDS_QUERY" in os.environ:  # Also set by JAX without chips.
    if _number("TPU_WORKER_ID", 0) > 0:
      _require("a TPU slice", _WORKERS[1])
    return None
  hosts = len(_metadata("worker-network-endpoints").split(","))
  pattern = r"MEGASCALE_NUM_SLICES\s*:\s*'?(\d+)"
  named = re.search(pattern, _metadata("tpu-env"))
  slices = _number("MEGASCALE_NUM_SLICES", int(named[1]) if named else 1)
  return Launcher("a Cloud TPU", "gcetpu", hosts * slices)


def _metadata(key: str) -> str:
  """An attribute of this virtual machine; empty if nobody answers."""
  import requests

  server = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
  url = f"http://{server}/computeMetadata/v1/instance/attributes/{key}"
  try:
    answer = requests.get(
      url, headers={"Metadata-Flavor": "Google"}, timeout=_METADATA_SECONDS
    )
  except requests.RequestException:
    return ""
  return answer.text if answer.ok else ""


def _kubernetes() -> Launcher | None:
  """A pod of an indexed job, where JAX's extra `k8s` is installed."""
  variables = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"}
  installed = importlib.util.find_spec("kubernetes")
  if not installed or not variables <= os.environ.keys():
    return None
  return Launcher("Kubernetes", None, None)


def _number(name: str, default: int) -> int:
  """A whole number in a variable."""
  text = os.environ.get(name) or str(default)
  if not text.isdecimal():
    raise errors.UserError(
      f"{name}={text} must be a whole number: correct it, or {_ELSE}"
    )
  return int(text)


def _require(launcher: str, *names: str) -> None:
  missing = [name for name in names if not os.environ.get(name)]
  if missing:
    raise errors.UserError(
      f"the environment is that of {launcher} without {', '.join(missing)}: "
      f"set what is missing, or {_ELSE}"
    )


def _require_below(name: str, count: int, of: str) -> None:
  if _number(name, 0) >= count:
    raise errors.UserError(
      f"{name}={os.environ[name]} must be below {count}, as {of} says: "
      f"correct it, or {_ELSE}"
    )
