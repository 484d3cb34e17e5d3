"""How many devices lie along each axis of the mesh.

The configuration gives a number for each axis, or -1 to have it chosen:

1. `tensor` is 1, unless there are at least twice as many devices as lanes.
   Then that many devices share a lane, as far as heads and feed-forward width
   can be divided. It is also more if `data` is given, and `fsdp` could not
   divide the width by what is left.
2. `fsdp` is the smallest number that leaves at most `most_bytes` of the state
   on a device, as far as the model's width can be divided.
3. `data` is the rest.

Several slices are data parallel: `fsdp` and `tensor` stay inside a slice.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from transformer_xl import errors

CHOSEN = -1


class Wanted(Protocol):
  """Number of devices along each axis, or CHOSEN; see `schema.MeshConfig`."""

  @property
  def data(self) -> int: ...

  @property
  def fsdp(self) -> int: ...

  @property
  def tensor(self) -> int: ...


class Axes(NamedTuple):
  """Number of devices along each axis."""

  data: int
  fsdp: int
  tensor: int


class Demand(NamedTuple):
  """The sizes of a program that decide how many devices each axis has."""

  lanes: int = 1  # That are read at the same time.
  width: int = 1  # What `fsdp` must divide.
  heads: int = 1  # What `tensor` must divide.
  state_bytes: int = 0  # Arrays that `fsdp` and `tensor` split.
  most_bytes: int = 1 << 26  # On a device, before they are split.


SMALL = Demand()  # Needs nothing but data parallelism.


def choose(
  config: Wanted, demand: Demand, *, num_devices: int, num_slices: int = 1
) -> Axes:
  """Fills in the axes that are -1 in `config` (`schema.MeshConfig`).

  Raises:
    UserError: the given axes cannot use all devices, those inside a slice do
      not divide its devices, or they leave more devices to a chosen axis than
      can split the matrices.
  """
  given = Axes(config.data, config.fsdp, config.tensor)
  fixed = [size for size in given if size != CHOSEN]
  free, rest = divmod(num_devices, math.prod(fixed))
  if rest or (len(fixed) == len(given) and free > 1):
    raise errors.UserError(_must_use_all(given, num_devices))
  in_slice = num_devices // num_slices
  fsdp = given.fsdp
  tensor = given.tensor
  takes_rest = given.data != CHOSEN
  if tensor == CHOSEN:
    room = math.gcd(free, in_slice // max(fsdp, 1), demand.heads)

    def is_enough(number: int) -> bool:
      if num_devices // number >= 2 * demand.lanes:
        return False
      if not takes_rest or demand == SMALL:
        return True
      # `fsdp` takes what is left, and has to divide the width.
      return demand.width % (free // number) == 0

    tensor = _smallest(room, is_enough)
    if takes_rest and fsdp != CHOSEN:
      tensor = free
    free //= tensor
  if fsdp == CHOSEN:
    room = math.gcd(free, in_slice // tensor, demand.width)
    most = demand.most_bytes * tensor
    fsdp = _smallest(room, lambda n: demand.state_bytes <= most * n)
    fsdp = free if takes_rest else fsdp
  if demand != SMALL:
    _require_split(given.fsdp, "fsdp", fsdp, "the model's width", demand.width)
    _require_split(given.tensor, "tensor", tensor, "its heads", demand.heads)
  if in_slice % (fsdp * tensor):
    raise errors.UserError(
      f"mesh.fsdp={fsdp} x mesh.tensor={tensor} must divide the {in_slice} "
      "devices of a slice, since slices are data parallel; set a smaller "
      "--config.mesh.fsdp or --config.mesh.tensor."
    )
  return Axes(num_devices // (fsdp * tensor), fsdp, tensor)


def _require_split(
  given: int, axis: str, size: int, of_what: str, divided: int
) -> None:
  """Raises a UserError if the rest of the devices cannot split matrices."""
  if given == CHOSEN and divided % size:
    raise errors.UserError(
      f"the other axes leave {size} devices to mesh.{axis}, which must divide "
      f"{of_what}, {divided}: set --config.mesh.data=-1, or other axes."
    )


def _smallest(number: int, is_enough: Callable[[int], bool]) -> int:
  """The smallest divisor that is enough, or else the largest."""
  divisors = (n for n in range(1, number) if number % n == 0)
  return next(filter(is_enough, divisors), number)


def _must_use_all(given: Axes, num_devices: int) -> str:
  legal = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
  product = " x ".join(
    f"mesh.{name}={size}" for name, size in given._asdict().items()
  )
  return (
    f"{product} must use all {num_devices} devices; try "
    f"--config.mesh.data=-1 with an fsdp x tensor that divides {num_devices}: "
    f"{', '.join(map(str, legal))}."
  )
