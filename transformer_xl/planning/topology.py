"""Devices that this machine does not have: of a TPU slice, or GPUs."""

import importlib.util
import os
import re

import jax
from jax.experimental import topologies

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl.planning import gpus

_FORM = re.compile(r"\w+:\d+(x\d+)*(x\d+slices)?")


def compile_only(*, runs_elsewhere: bool = False) -> None:
  """Lets libtpu compile without a TPU and without warnings about it.

  Must be called before JAX creates its first array. Nothing runs but on the
  processor, unless `runs_elsewhere`.
  """
  os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-16",
    TPU_WORKER_HOSTNAMES="localhost",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
  )
  if not runs_elsewhere:
    jax.config.update("jax_platforms", "cpu")


def slice_devices(topology: str) -> list[jax.Device]:
  """Returns the devices of a named slice, to compile for.

  `v5e:4x4x2slices` are two slices `v5e:4x4`. `h100:8` are eight GPUs of one
  host.

  Raises:
    UserError: libtpu is not installed or does not know the slice; or JAX's CUDA
      plugin is not installed.
  """
  kind, _, count = topology.partition(":")
  is_gpu = gpus.are_named(topology)
  if is_gpu and count.isdecimal() and int(count):
    return gpus.devices(kind, int(count))
  if is_gpu or not _FORM.fullmatch(topology):
    raise errors.UserError(
      f"--topology={topology} must be a kind of chip and the chips along each "
      "axis, such as v4:2x2x1, v5p:2x2x1, v6e:4x4, or v5e:4x4, which is the "
      "slice v5litepod-16; or GPUs of one host, such as h100:8 "
      f"({', '.join(gpus.GPUS)})."
    )
  if importlib.util.find_spec("libtpu") is None:
    raise errors.UserError(
      "--mode=plan needs the TPU compiler, which runs on any machine: "
      f"{errors.install('tpu')}"
    )
  several = re.fullmatch(r"(.+)x(\d+)slices", topology)
  name = topology
  options: dict[str, int | str] = {}
  if several:
    name = several[1]
    options["num_slices"] = int(several[2])
  if kind == "v4":  # Both cores of a chip are one device, as on a real one.
    options["chip_config_name"] = "megacore"
  try:
    found: list[jax.Device] = topologies.get_topology_desc(
      platform="tpu", topology_name=name, **options
    ).devices
  except Exception as error:  # JAX passes on any error of libtpu.
    raise errors.UserError(
      f"libtpu knows no TPU slice {topology!r} ({error}); names are like "
      "v4:2x2x1, v5e:4x4, v5p:2x2x1, v6e:4x4, v5e:4x4x2slices."
    ) from None
  if found[0].device_kind not in hardware.CHIPS:
    raise errors.UserError(
      f"{topology} has chips of the kind {found[0].device_kind!r}; known are "
      f"{', '.join(hardware.CHIPS)}."
    )
  return found
