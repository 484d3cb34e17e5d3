"""The device mesh, and how arrays are sharded over its axes.

Lanes are sharded over `data` and `fsdp`; parameters and optimizer state over
`fsdp`; heads, feed-forward width and vocabulary over `tensor`. Memory
says itself how it is sharded, by a method `partition_specs`.
"""

import functools
import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax import NamedSharding
from jax import P
from jax.experimental import mesh_utils

from transformer_xl import errors
from transformer_xl import shapes

AXES = ("data", "fsdp", "tensor")
LANES = ("data", "fsdp")

# Tables are sharded by words, or by width where the devices do not divide the
# words. They are never padded, so that parameter counts are the published ones.
_BY_WORDS, _BY_WIDTH = P(("tensor", "fsdp")), P("tensor", "fsdp")
# A table that is narrower than the chip's tiles is not sharded by width: it is
# small, and sharding it makes every chip gather the gradients of all lanes'
# embeddings (docs/tpu.md).
_NARROW = 128
# The first rule that matches the end of a path applies, and of its choices the
# first one with the smallest shards. Layers are stacked, so their arrays have
# one more axis in front.
RULES: tuple[tuple[Any, ...], ...] = (
  (r"(embedding/table|softmax/kernel)_\d+$", _BY_WORDS, _BY_WIDTH),
  (r"softmax/bias$", _BY_WORDS),
  (r"projection_\d+$", P(None, "fsdp")),
  (r"attention/(query|key|value|position)$", P(None, "fsdp", "tensor")),
  (r"feed_forward/in_kernel$", P(None, "fsdp", "tensor")),
  (r"(attention/output|feed_forward/out_kernel)$", P(None, "tensor", "fsdp")),
  (r"(attention/\w+|feed_forward/in)_bias$", P(None, "tensor")),
)
_ONE_LAYER = re.compile(r"\.layers/\[\d+\]/\w")  # Without a stacked axis.


def make_mesh(
  config: Any, *, lanes: Sequence[int], devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
  """Makes the mesh of all devices, or of those given.

  `config` has the number of devices along each axis (`schema.MeshConfig`); -1
  along `data` stands for all remaining ones.

  Raises:
    UserError: the axes do not use all devices, or data x fsdp does not divide
      one of the numbers of lanes.
  """
  available = len(devices) if devices else jax.device_count()
  fixed = config.fsdp * config.tensor
  data = available // fixed if config.data == -1 else config.data
  if data * fixed != available:
    legal = [str(n) for n in range(1, available + 1) if available % n == 0]
    raise errors.UserError(
      f"mesh.data={config.data} x mesh.fsdp={config.fsdp} x mesh.tensor="
      f"{config.tensor} must use all {available} devices; try "
      f"--config.mesh.data=-1 with an fsdp x tensor that divides {available}: "
      f"{', '.join(legal)}."
    )
  parts = data * config.fsdp
  for count in lanes:
    if count % parts:
      lower = count // parts * parts
      raise errors.UserError(
        f"a batch of {count} lanes (train.batch_size / "
        "train.accumulation_steps, or eval.batch_size) must be a multiple of "
        f"the {parts} devices that share it; the nearest are "
        f"{f'{lower} and ' if lower else ''}{lower + parts}."
      )
  grid = mesh_utils.create_device_mesh(
    (data, config.fsdp, config.tensor),
    devices,
    allow_split_physical_axes=True,  # Of v5p:4x8x8, an axis of 2 is part of 4.
  )
  types = (jax.sharding.AxisType.Auto,) * len(AXES)
  return jax.sharding.Mesh(grid, AXES, axis_types=types)


def evaluation_devices(
  config: Any, *, lanes: Sequence[int]
) -> Sequence[jax.Device]:
  """The devices that evaluate: fewer than all where lanes are fewer.

  One lane is the published protocol of dynamic evaluation, whatever the
  machine. As many devices as divide the lanes are used, with a warning, if
  `mesh.data` is -1. Several processes use all devices, since each needs some.
  The arguments are those of `make_mesh`.
  """
  devices, fixed = jax.devices(), config.fsdp * config.tensor
  data, rest = divmod(len(devices), fixed)
  is_free = config.data == -1 and rest == 0 and jax.process_count() == 1
  if not is_free or not lanes or min(lanes) >= data * config.fsdp:
    return devices
  shared = math.gcd(*lanes)
  for part in range(data - 1, 0, -1):
    if data % part == 0 and shared % (part * config.fsdp) == 0:
      used = part * fixed
      logging.warning(
        "%d of %d devices stay idle: there are no more lanes than %d.",
        *(len(devices) - used, len(devices), min(lanes)),
      )
      return devices[:used]
  return devices


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Sharding with the whole array on each device."""
  return NamedSharding(mesh, P())


def segments(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Sharding of arrays [S, B, T]."""
  return NamedSharding(mesh, P(None, LANES))


def lanes(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Sharding of arrays [B, ...]."""
  return NamedSharding(mesh, P(LANES))


def parameters(mesh: jax.sharding.Mesh, tree: shapes.PyTree) -> shapes.PyTree:
  """Shardings of parameters, trees that repeat their paths, and memory.

  A node with a method `partition_specs` is sharded as it says: it returns a
  tree of the same structure.
  """
  dividing = functools.partial(_dividing, mesh)

  def knows(node):
    return hasattr(node, "partition_specs")

  def shard(path, leaf):
    if knows(leaf):
      return jax.tree.map(dividing, leaf, leaf.partition_specs())
    name = "/".join(str(getattr(key, "key", key)) for key in path)
    for pattern, *choices in RULES:
      if re.search(pattern, name):
        if _BY_WIDTH in choices and leaf.shape[-1] < _NARROW:
          choices.remove(_BY_WIDTH)
        if _ONE_LAYER.search(name):
          choices = [P(*spec[1:]) for spec in choices]
        return min(
          (dividing(leaf, spec) for spec in choices),
          key=lambda sharding: math.prod(sharding.shard_shape(leaf.shape)),
        )
    return replicated(mesh)

  return jax.tree.map_with_path(shard, tree, is_leaf=knows)


def lane_copies(mesh: jax.sharding.Mesh, tree: shapes.PyTree) -> shapes.PyTree:
  """Shardings of parameters with one copy for each lane, [B, ...].

  Lanes take `data` and `fsdp`, so a copy can only be sharded over `tensor`.
  """

  def shard(sharding):
    kept = (
      tuple(name for name in _names(axes) if name not in LANES) or None
      for axes in sharding.spec
    )
    return NamedSharding(mesh, P(LANES, *kept))

  return jax.tree.map(shard, parameters(mesh, tree))


def placed(tree: shapes.PyTree, shardings: shapes.PyTree) -> shapes.PyTree:
  """Shapes and types with shardings, to compile for or to restore into."""

  def place(leaf, sharding):
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


def lane_groups(lanes: int) -> int:
  """Number of shards of a batch of lanes on the current mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.manual_axes:  # Inside `shard_map`, a device sees its own lanes only.
    return 1
  names = dividing_axes(lanes, LANES, mesh.shape) or ()
  return math.prod(mesh.shape[name] for name in names)


def compiler_options(mesh: jax.sharding.Mesh) -> dict[str, Any] | None:
  """Options for the TPU compiler, which sharded parameters need.

  By default it multiplies by a sharded matrix one shard at a time. According to
  its own estimate, projections are then several times slower (docs/kernels.md).
  """
  if not mesh.devices.flat[0].device_kind.startswith("TPU"):
    return None
  return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


def _dividing(mesh, array, spec) -> NamedSharding:
  """Shards only those axes that the devices divide."""
  padded = (*spec, *[None] * (array.ndim - len(spec)))
  found = (
    dividing_axes(size, _names(axes), mesh.shape)
    for size, axes in zip(array.shape, padded, strict=True)
  )
  return NamedSharding(mesh, P(*found))


def _names(axes) -> list[str]:
  """The mesh axes in one entry of a PartitionSpec."""
  return [] if axes is None else np.atleast_1d(axes).tolist()
