"""The device mesh, and how arrays are sharded over its axes.

Lanes are sharded over `data` and `fsdp`; parameters and optimizer state over
`fsdp`; heads, feed-forward width and vocabulary over `tensor`. A parameter says
how it is split where it is made, by a word of `SPLITS`
(`model/parameters.py`). The states of layers have a method `partition_specs`,
which says how they are sharded.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import NamedSharding
from jax import P
from jax.experimental import mesh_utils

from transformer_xl import errors
from transformer_xl import mesh_axes
from transformer_xl import shapes

AXES = mesh_axes.Axes._fields
LANES = ("data", "fsdp")
# The compiler shards what nothing else does.
AXIS_TYPES = (jax.sharding.AxisType.Auto,) * len(AXES)

# Tables are sharded by words, or by width where the devices do not divide the
# words. They are never padded, so that parameter counts are the published ones.
_BY_WORDS = P(("tensor", "fsdp"))
_BY_WIDTH = P("tensor", "fsdp")
# A table that is narrower than the chip's tiles is not sharded by width: it is
# small, and sharding it makes every chip gather the gradients of all lanes'
# embeddings (docs/tpu.md).
_NARROW = 128
# The words for how a parameter is split, with the choices that there are. The
# first one with the smallest shards counts.
SPLITS: dict[str, tuple[P, ...]] = {
  "whole": (),
  # Matrices [inputs, outputs], in pairs: the first one's outputs are split over
  # `tensor`, as heads or as the width of a feed-forward part; those are the
  # second one's inputs.
  "columns": (P("fsdp", "tensor"),),
  "rows": (P("tensor", "fsdp"),),
  "features": (P("tensor"),),  # What is added to such outputs, [H, Dh] or [F].
  # Other matrices, by one axis alone.
  "inputs": (P("fsdp"),),
  "outputs": (P(None, "fsdp"),),
  "words": (_BY_WORDS,),
  "table": (_BY_WORDS, _BY_WIDTH),
}


class Split(NamedTuple):
  """How one parameter is split.

  Attributes:
    word: a key of `SPLITS`.
    num_stacked: axes in front of the parameter's own, which stay whole. They
      are there if layers are stacked.
  """

  word: str
  num_stacked: int = 0

  def choices(self, shape: tuple[int, ...]) -> tuple[P, ...]:
    """The PartitionSpecs that an array of this shape may have."""
    choices = SPLITS[self.word]
    if self.word == "table" and shape[-1] < _NARROW:
      choices = (_BY_WORDS,)
    whole = (None,) * self.num_stacked
    return tuple(P(*whole, *spec) for spec in choices)


# How the parameters of a model are split, by their paths.
Splits = Mapping[tuple[str, ...], Split]
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh
AnyArray = jax.Array | jax.ShapeDtypeStruct


def make_mesh(
  config: mesh_axes.Wanted,
  *,
  demand: mesh_axes.Demand = mesh_axes.SMALL,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """Makes the mesh of all devices, or of those given.

  `config` has the number of devices along each axis (`schema.MeshConfig`), or
  -1 to have it chosen for the demand. Slices lie along `data`, so only that
  axis crosses the slow network between them.

  Raises:
    UserError: the axes do not use all devices, or they cross slices.
  """
  devices = devices or jax.devices()
  slices = num_slices(devices)
  axes = mesh_axes.choose(
    config, demand, num_devices=len(devices), num_slices=slices
  )
  # Physical axes may be split: for v5p:4x8x8, an axis of 2 is a part of 4.
  if slices > 1:
    grid = mesh_utils.create_hybrid_device_mesh(
      (axes.data // slices, axes.fsdp, axes.tensor),
      (slices, 1, 1),
      devices=devices,
      allow_split_physical_axes=True,
    )
  else:
    grid = mesh_utils.create_device_mesh(
      axes, devices=devices, allow_split_physical_axes=True
    )
  return jax.sharding.Mesh(grid, AXES, axis_types=AXIS_TYPES)


def of_one_device(device: jax.Device) -> jax.sharding.Mesh:
  """The mesh of a single device, whose axes split nothing."""
  return make_mesh(mesh_axes.Axes(data=1, fsdp=1, tensor=1), devices=[device])


def num_slices(devices: Sequence[jax.Device]) -> int:
  """Number of TPU slices; other devices count as one."""
  if not devices[0].device_kind.startswith("TPU"):
    return 1
  return len({getattr(device, "slice_index", None) for device in devices})


def describe(mesh: jax.sharding.Mesh, lanes: int, *, parts: int = 1) -> str:
  """The axes of a mesh, and the lanes that are read on it."""
  axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
  padded = padded_lanes(mesh, lanes, parts=parts)
  empty = f", {padded - lanes} of them empty" if padded > lanes else ""
  return f"Mesh of {mesh.size} devices: {axes}; {padded} lanes{empty}."


def num_shards(mesh: AnyMesh) -> int:
  """Number of shards of a batch of lanes."""
  return math.prod(mesh.shape[name] for name in LANES)


def padded_lanes(mesh: AnyMesh, lanes: int, *, parts: int = 1) -> int:
  """The number of lanes with the empty ones that fill up every shard.

  Each of the `parts` has shards of its own to fill.
  """
  group = num_shards(mesh) * parts
  return math.ceil(lanes / group) * group


def replicated(mesh: AnyMesh) -> NamedSharding:
  """Sharding with the whole array on each device."""
  return NamedSharding(mesh, P())


def segments(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Sharding of arrays [S, B, T]."""
  return NamedSharding(mesh, P(None, LANES))


def lanes(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Sharding of arrays [B, ...]."""
  return NamedSharding(mesh, P(LANES))


def spec(*axes: str | tuple[str, ...] | None) -> shapes.PyTree:
  """A PartitionSpec, typed as what it stands for: an array of a tree."""
  return P(*axes)


def shardings(
  mesh: AnyMesh, tree: shapes.PyTree, splits: Splits
) -> shapes.PyTree:
  """Shardings of parameters, and of trees that repeat their paths.

  Such a tree, as an optimizer's state, may hold the paths at any depth. A node
  with a method `partition_specs` is sharded as by `states`; what else is no
  parameter stays whole.
  """

  def shard(path: jax.tree_util.KeyPath, leaf: shapes.PyTree) -> shapes.PyTree:
    if _has_specs(leaf):
      return states(mesh, leaf)
    names = tuple(getattr(key, "key", "") for key in path)
    ends = (names[start:] for start in range(len(names)))
    split = next((splits[end] for end in ends if end in splits), Split("whole"))
    return min(
      (_dividing(mesh, leaf, spec) for spec in split.choices(leaf.shape)),
      key=lambda sharding: math.prod(sharding.shard_shape(leaf.shape)),
      default=replicated(mesh),
    )

  return jax.tree.map_with_path(shard, tree, is_leaf=_has_specs)


def states(mesh: AnyMesh, state: shapes.PyTree) -> shapes.PyTree:
  """Shardings of what layers remember, or of another node that knows its own.

  Its method `partition_specs` returns them, as a tree of the same structure.
  """
  dividing = functools.partial(_dividing, mesh)
  return jax.tree.map(dividing, state, state.partition_specs())


def _has_specs(node: shapes.PyTree) -> bool:
  return hasattr(node, "partition_specs")


def lane_copies(
  mesh: jax.sharding.Mesh, tree: shapes.PyTree, splits: Splits
) -> shapes.PyTree:
  """Shardings of parameters with one copy for each lane, [B, ...].

  Lanes take `data` and `fsdp`, so a copy can only be sharded over `tensor`.
  """

  def shard(sharding: NamedSharding) -> NamedSharding:
    kept = (
      tuple(name for name in _names(axes) if name not in LANES) or None
      for axes in sharding.spec
    )
    return NamedSharding(mesh, P(LANES, *kept))

  return jax.tree.map(shard, shardings(mesh, tree, splits))


def with_shardings(
  tree: shapes.PyTree, shardings: shapes.PyTree
) -> shapes.PyTree:
  """Shapes and types with shardings, to compile for or to restore into."""

  def place(leaf: AnyArray, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  return jax.tree.map(place, tree, shardings)


def dividing_axes(
  size: int, names: Sequence[str], sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
  """The longest prefix of the named mesh axes that divides a size, or None.

  Names that are not in `sizes`, those of the mesh's axes, are left out.
  """
  names = tuple(name for name in names if name in sizes)
  while names and size % math.prod(sizes[name] for name in names):
    names = names[:-1]
  return names or None


def current() -> jax.sharding.AbstractMesh:
  """The mesh of `jax.set_mesh`, whose axes the compiler may use as it likes.

  Raises:
    UserError: they are explicit, as `jax.make_mesh` makes them by default.
  """
  mesh = jax.sharding.get_abstract_mesh()
  explicit = [
    name
    for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    if kind == jax.sharding.AxisType.Explicit
  ]
  if explicit:
    names = ", ".join(explicit)
    number = len(mesh.axis_names)
    raise errors.UserError(
      f"axes of the mesh ({names}) are explicit, and layers leave it to "
      "the compiler how arrays are split: make it with jax.make_mesh(SHAPE, "
      f"NAMES, axis_types=(jax.sharding.AxisType.Auto,) * {number})."
    )
  return mesh


def lane_axes(lanes: int) -> tuple[str, ...] | None:
  """The axes of the current mesh that shard a batch of lanes; None for none."""
  mesh = current()
  if mesh.manual_axes:  # Inside `shard_map`, a device sees its own lanes only.
    return None
  return dividing_axes(lanes, LANES, mesh.shape)


def lane_groups(lanes: int) -> int:
  """Number of shards of a batch of lanes on the current mesh."""
  mesh = current()
  return math.prod(mesh.shape[name] for name in lane_axes(lanes) or ())


def shard_lanes(hidden: shapes.Hidden) -> shapes.Hidden:
  """Has the compiler keep the rows of [B, T, D] on the devices of their lanes.

  Outside of a loop it may else shard them like the matrices that multiply them,
  and send the rows of all lanes to every device (docs/measurements/tpu.md).
  """
  if lane_groups(hidden.shape[0]) == 1:
    return hidden
  axes = lane_axes(hidden.shape[0])
  spec = P(axes, P.UNCONSTRAINED, P.UNCONSTRAINED)
  return jax.lax.with_sharding_constraint(hidden, spec)


def compiler_options(mesh: jax.sharding.Mesh) -> dict[str, str] | None:
  """Options for the TPU compiler, which sharded parameters need.

  By default the compiler multiplies by a sharded matrix one shard at a time.
  According to its own estimate, projections are then several times slower.
  """
  if not mesh.devices.flat[0].device_kind.startswith("TPU"):
    return None
  return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


def _dividing(mesh: AnyMesh, array: AnyArray, spec: P) -> NamedSharding:
  """Shards only those axes that the devices divide."""
  padded = (*spec, *[None] * (array.ndim - len(spec)))
  found = (
    dividing_axes(size, _names(axes), mesh.shape)
    for size, axes in zip(array.shape, padded, strict=True)
  )
  return NamedSharding(mesh, P(*found))


def _names(axes: str | tuple[str, ...] | None) -> list[str]:
  """The mesh axes in one entry of a PartitionSpec."""
  return [] if axes is None else np.atleast_1d(axes).tolist()
