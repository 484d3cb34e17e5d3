"""TPU chips that exist only as coordinates, to make meshes of."""

import dataclasses
import itertools
import math

KINDS = {"v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
# Slices as Google offers them, by their number of chips.
SLICES = {
  "v5e": ((2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
  "v5p": ((2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8)),
  "v6e": ((2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
}


@dataclasses.dataclass(frozen=True)
class Chip:
  """What JAX reads of a device, to place it in a mesh."""

  id: int
  device_kind: str
  coords: tuple[int, ...]
  slice_index: int
  process_index: int
  platform: str = "tpu"
  core_on_chip: int = 0


def make(kind, shape, *, slices=1):
  """The chips of some slices of one shape, four to a host."""
  shape = (*shape, 1)[:3]
  places = itertools.product(
    range(slices), *(range(size) for size in reversed(shape))
  )
  return [
    Chip(number, KINDS[kind], (x, y, z), index, number // 4)
    for number, (index, z, y, x) in enumerate(places)
  ]


def every_slice():
  """(kind, shape, number of chips) of slices of 8 to 256 chips."""
  for kind, shapes in SLICES.items():
    for shape in shapes:
      yield kind, shape, math.prod(shape)
