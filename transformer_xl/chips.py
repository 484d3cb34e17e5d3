"""Kinds of TPU, and the devices of a slice that is not here."""

import os
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import topologies

from transformer_xl import errors


class Chip(NamedTuple):
  """A kind of TPU. One chip may be several JAX devices."""

  devices: int  # Per chip; a v4 topology shows its two cores.
  hbm_bytes: float  # Per device, that the compiler lets a program use.
  clock: float  # Hz, of the compiler's cycles.
  link_bytes: float  # A second and chip, over all its links, as published.


# Links, in Gbit/s as published: 2,400, 1,600, 4,800 and 3,584.
CHIPS = {
  "TPU v4": Chip(2, 15.25 * 2**30, 1.05e9, 300e9),
  "TPU v5 lite": Chip(1, 15.75 * 2**30, 1.5e9, 200e9),
  "TPU v5": Chip(1, 95.73 * 2**30, 1.75e9, 600e9),
  "TPU v6 lite": Chip(1, 31.24 * 2**30, 1.75e9, 448e9),
}


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
  if found[0].device_kind not in CHIPS:
    raise errors.UserError(
      f"{topology} has chips of the kind {found[0].device_kind!r}; known are "
      f"{', '.join(CHIPS)}."
    )
  return found
