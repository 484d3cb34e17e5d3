"""The devices of a TPU slice that is not here."""

import os
from typing import Any

import jax
from jax.experimental import topologies

from transformer_xl import errors
from transformer_xl import hardware


def compile_only() -> None:
  """Lets libtpu compile without looking for a TPU, and say nothing of it.

  Has to come before JAX makes its first array.
  """
  os.environ.update(
    {
      "TPU_SKIP_MDS_QUERY": "1",
      "TPU_ACCELERATOR_TYPE": "v5litepod-16",
      "TPU_WORKER_HOSTNAMES": "localhost",
      "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
  )
  jax.config.update("jax_platforms", "cpu")


def slice_devices(topology: str) -> list[Any]:
  """The devices of a slice, by its name, to compile for.

  Raises:
    UserError: libtpu is not installed or knows no such slice.
  """
  try:
    found: list[Any] = topologies.get_topology_desc(
      platform="tpu", topology_name=topology
    ).devices
  except Exception as error:  # JAX passes on whatever libtpu says.
    raise errors.UserError(
      f"no TPU slice {topology!r} is known to libtpu ({error}); names are like "
      "v4:2x2x1, v5e:4x4, v5p:2x2x1, v6e:4x4, and need pip install '.[tpu]'."
    ) from None
  if found[0].device_kind not in hardware.CHIPS:
    raise errors.UserError(
      f"{topology} has chips of the kind {found[0].device_kind!r}; known are "
      f"{', '.join(hardware.CHIPS)}."
    )
  return found
