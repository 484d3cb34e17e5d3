"""Published figures of accelerators: peak speed, memory, clock and links."""

from typing import NamedTuple


class Chip(NamedTuple):
  """A TPU chip, which may be several JAX devices."""

  devices: int  # Per chip; a v4 topology lists both cores.
  hbm_bytes: float  # Per device, available to a program.
  clock: float  # Hz, of the compiler's cycles.
  link_bytes: float  # Per second and chip, over all links.


# Published bandwidths of the links in Gbit/s: 2,400, 1,600, 4,800 and 3,584.
CHIPS = {
  "TPU v4": Chip(2, 15.25 * 2**30, 1.05e9, 300e9),
  "TPU v5 lite": Chip(1, 15.75 * 2**30, 1.5e9, 200e9),
  "TPU v5": Chip(1, 95.73 * 2**30, 1.75e9, 600e9),
  "TPU v6 lite": Chip(1, 31.24 * 2**30, 1.75e9, 448e9),
}

# Published dense bfloat16 FLOP/s of one JAX device, by `device_kind`. A v4 chip
# is one device; v2 and v3 chips have two cores, each a device of its own.
PEAK_FLOPS = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA H100 80GB HBM3": 989e12,
  "NVIDIA H200": 989e12,
}
