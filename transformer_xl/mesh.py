"""The device mesh, and which axis of which array is split over it.

Lanes are split over `data` and `fsdp`; parameters and everything the optimizer
keeps for them over `fsdp`; heads, feed-forward width and vocabulary over
`tensor`. Memory says itself how it is split, by a method `partition_specs`.
"""

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from transformer_xl import errors
from transformer_xl import shapes

AXES = ("data", "fsdp", "tensor")
LANES = ("data", "fsdp")

# Tables are split over the words, and over the width where the devices do not
# divide the words. None is padded: parameters are counted as published.
_BY_WORDS = PartitionSpec(("tensor", "fsdp"))
_BY_WIDTH = PartitionSpec("tensor", "fsdp")
# A table whose width does not fill the chip's tiles is not split by it: it is
# small, and split it has the gradients of all lanes' embeddings gathered on
# every chip (docs/tpu.md).
_NARROW = 128
# The first rule that matches the end of a path holds, and of its choices the
# first that makes the smallest parts. Layers are stacked, so their arrays have
# one more axis in front.
RULES: tuple[tuple[Any, ...], ...] = (
  (r"embedding/table_\d+$", _BY_WORDS, _BY_WIDTH),
  (r"softmax/kernel_\d+$", _BY_WORDS, _BY_WIDTH),
  (r"softmax/bias$", PartitionSpec(("tensor", "fsdp"))),
  (r"projection_\d+$", PartitionSpec(None, "fsdp")),
  (
    r"attention/(query|key|value|position)$",
    PartitionSpec(None, "fsdp", "tensor"),
  ),
  (r"attention/output$", PartitionSpec(None, "tensor", "fsdp")),
  (r"attention/\w+_bias$", PartitionSpec(None, "tensor")),
  (r"feed_forward/in_kernel$", PartitionSpec(None, "fsdp", "tensor")),
  (r"feed_forward/in_bias$", PartitionSpec(None, "tensor")),
  (r"feed_forward/out_kernel$", PartitionSpec(None, "tensor", "fsdp")),
)
_ONE_LAYER = re.compile(r"\.layers/\[\d+\]/\w")  # Nothing is stacked in it.


class Axes(Protocol):
  """How many devices there are along each axis; -1 for all that remain."""

  @property
  def data(self) -> int:
    """Devices that hold whole copies of the parameters."""

  @property
  def fsdp(self) -> int:
    """Devices that parameters and lanes are split over."""

  @property
  def tensor(self) -> int:
    """Devices that heads and vocabulary are split over."""


def make_mesh(
  config: Axes,
  *,
  lanes: tuple[int, ...],
  devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
  """The mesh of all devices.

  Args:
    config: how many devices along each axis.
    lanes: the numbers of lanes that have to divide among data and fsdp.
    devices: others than this machine's, to compile for.

  Raises:
    UserError: the devices or the lanes do not divide.
  """
  available = len(devices) if devices else jax.device_count()
  fixed = config.fsdp * config.tensor
  data = available // fixed if config.data == -1 else config.data
  if data * fixed != available:
    legal = [n for n in range(1, available + 1) if available % n == 0]
    raise errors.UserError(
      f"mesh.data={config.data} x mesh.fsdp={config.fsdp} x mesh.tensor="
      f"{config.tensor} must use all {available} devices; try "
      f"--config.mesh.data=-1 with an fsdp x tensor that divides {available}: "
      f"{', '.join(map(str, legal))}."
    )
  parts = data * config.fsdp
  for count in lanes:
    if count % parts:
      lower, upper = count // parts * parts, (count // parts + 1) * parts
      raise errors.UserError(
        f"a batch of {count} lanes (train.batch_size / "
        "train.accumulation_steps, or eval.batch_size) must be a multiple of "
        f"the {parts} devices that share it; the nearest are "
        f"{f'{lower} and ' if lower else ''}{upper}."
      )
  # An axis of 2 is a part of a physical one of 4 on the slice v5p:4x8x8.
  grid = mesh_utils.create_device_mesh(
    (data, config.fsdp, config.tensor),
    devices,
    allow_split_physical_axes=True,
  )
  return jax.sharding.Mesh(
    grid, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES)
  )


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """The whole array on each device."""
  return NamedSharding(mesh, PartitionSpec())


def segments(mesh: jax.sharding.Mesh) -> NamedSharding:
  """For arrays [S, B, T]."""
  return NamedSharding(mesh, PartitionSpec(None, LANES))


def lanes(mesh: jax.sharding.Mesh) -> NamedSharding:
  """For arrays [B, ...]."""
  return NamedSharding(mesh, PartitionSpec(LANES))


def parameters(mesh: jax.sharding.Mesh, tree: shapes.PyTree) -> shapes.PyTree:
  """Shardings for parameters, trees that repeat their paths, and memory.

  Args:
    mesh: of `make_mesh`.
    tree: arrays or their shapes. A node with a method `partition_specs` is
      split as that says: it returns a tree of the same structure.
  """

  def shard(path, leaf):
    if _knows_its_layout(leaf):
      return jax.tree.map(
        lambda part, spec: _that_divides(mesh, spec, part.shape),
        leaf,
        leaf.partition_specs(),
      )
    name = "/".join(str(getattr(key, "key", key)) for key in path)
    for pattern, *choices in RULES:
      if re.search(pattern, name):
        if _BY_WIDTH in choices and leaf.shape[-1] < _NARROW:
          choices.remove(_BY_WIDTH)
        if _ONE_LAYER.search(name):
          choices = [PartitionSpec(*spec[1:]) for spec in choices]
        return min(
          (_that_divides(mesh, spec, leaf.shape) for spec in choices),
          key=lambda place: math.prod(place.shard_shape(leaf.shape)),
        )
    return replicated(mesh)

  return jax.tree_util.tree_map_with_path(
    shard, tree, is_leaf=_knows_its_layout
  )


def lane_copies(mesh: jax.sharding.Mesh, tree: shapes.PyTree) -> shapes.PyTree:
  """Shardings for parameters of which each lane has a copy, [B, ...].

  Lanes are where they always are, so only `tensor` is left to split a copy.
  """

  def shard(place):
    kept = (
      tuple(name for name in _names(axes) if name not in LANES) or None
      for axes in place.spec
    )
    return NamedSharding(mesh, PartitionSpec(LANES, *kept))

  return jax.tree.map(shard, parameters(mesh, tree))


def placed(tree: shapes.PyTree, places: shapes.PyTree) -> shapes.PyTree:
  """Shapes with shardings, as compiling and restoring want them."""
  return jax.tree.map(
    lambda leaf, place: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=place
    ),
    tree,
    places,
  )


def dividing_axes(
  size: int, names: Sequence[str], sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
  """The longest beginning of some mesh axes that divides an array's axis.

  Args:
    size: of the array's axis.
    names: of the mesh's axes, in order.
    sizes: of the mesh's axes, by name.
  """
  names = tuple(names)
  while names and size % math.prod(sizes[name] for name in names):
    names = names[:-1]
  return names or None


def lane_groups(lanes: int) -> int:
  """How many parts of a batch of lanes the ambient mesh's devices hold."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.manual_axes:  # Inside `shard_map` the lanes are one device's own.
    return 1
  axes = {name: mesh.shape[name] for name in LANES if name in mesh.shape}
  names = dividing_axes(lanes, tuple(axes), axes) or ()
  return math.prod(axes[name] for name in names)


def compiler_options(mesh: jax.sharding.Mesh) -> dict[str, Any] | None:
  """What the TPU compiler has to be told when parameters are split.

  By default it multiplies by a split matrix piece by piece, which by its own
  estimate makes the projections several times slower (docs/kernels.md).
  """
  if not mesh.devices.flat[0].device_kind.startswith("TPU"):
    return None
  return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


def _that_divides(mesh, spec, shape) -> NamedSharding:
  """Leaves an axis whole where the devices do not divide it."""

  def axes(size, names):
    return dividing_axes(size, _names(names), mesh.shape)

  padded = (*spec, *[None] * (len(shape) - len(spec)))
  found = (axes(size, names) for size, names in zip(shape, padded, strict=True))
  return NamedSharding(mesh, PartitionSpec(*found))


def _knows_its_layout(node) -> bool:
  return hasattr(node, "partition_specs")


def _names(axes) -> list[str]:
  """The mesh's axes that split one axis of an array."""
  return [] if axes is None else np.atleast_1d(axes).tolist()
