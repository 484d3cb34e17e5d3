"""Segment memory: the hidden states each layer may still attend to.

Memory is a value. A segment takes one and returns the next; there is no other
state. Hidden states are right-aligned, newest last, and `length` is how many
of them a lane may see, so a lane forgets by setting a number. A compressed
memory holds the states before them (Rae et al. 2020). This file alone knows how
the arrays are laid out.

Layers may remember different lengths (`config.memory_lens`). Neighbours with
equal lengths are a group. Hidden states are a tuple with an array for each
group, or one array if all layers are one; only then can there be a compressed
memory.

Shapes: N layers, n of a group, B lanes, M memory length, C compressed slots, c
states in each of them, T segment length, D model width.
"""

import itertools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import visibility


class Memory(NamedTuple):
  """What one segment hands to the next."""

  hiddens: shapes.Hiddens  # [n, B, M, D], the inputs of each layer.
  # Visible tokens, from the right: one a hidden state, c a compressed slot.
  length: jt.Int[shapes.Array, "B"]
  # The states before `hiddens`, newest last.
  compressed: jt.Float[shapes.Array, "N B C D"] | None = None

  @property
  def groups(self) -> list["Memory"]:
    """The memory of each group of layers, from the lowest up."""
    if not isinstance(self.hiddens, tuple):
      return [self]
    return [
      Memory(group, jnp.minimum(self.length, group.shape[2]))
      for group in self.hiddens
    ]

  @property
  def mem_len(self) -> int:
    """M, the longest of the groups."""
    return max(group.shape[2] for group in jax.tree.leaves(self.hiddens))

  @property
  def compressed_len(self) -> int:
    """C."""
    return 0 if self.compressed is None else self.compressed.shape[2]

  @property
  def states(self) -> jt.Float[shapes.Array, "n B P D"]:
    """The P = C + M positions of a group's memory, oldest first."""
    hiddens: Any = self.hiddens
    if self.compressed is None:
      return hiddens
    return jnp.concatenate([self.compressed, hiddens], axis=2)

  @property
  def is_empty(self) -> bool:
    """Whether there is nothing to store, because M is 0."""
    return self.mem_len == 0

  @property
  def arrays(self) -> dict[str, Any]:
    """What there is to save, by name."""
    arrays = self._asdict()
    return {name: arrays[name] for name in arrays if arrays[name] is not None}

  @property
  def sizes(self) -> list[Any]:
    """N, B, M, D and C if there is one, or those of groups; for metadata."""
    if isinstance(self.hiddens, tuple):
      return [list(group.shape) for group in self.hiddens]
    compressed = [] if self.compressed is None else [self.compressed_len]
    return [*self.hiddens.shape, *compressed]

  def partition_specs(self) -> "Memory":
    """How a mesh splits it: by lanes.

    Hidden states stay whole over `tensor`. Split by width as well, XLA's
    partitioner of jax 0.10.2 computes other gradients on a mesh of 2 x 2 x 2
    (test_sharding.py).
    """
    specs: Any = jax.tree.map(lambda _: P(None, mesh_lib.LANES), self)
    return specs._replace(length=P(mesh_lib.LANES))


def _map_lanes(function, memory: Any, *others: Any) -> Any:
  """Applies `function(array, axis of the lanes, ...)` to all arrays.

  The memory is of any kind that knows its `partition_specs`.
  """
  axes = jax.tree.map(
    lambda spec: spec.index(mesh_lib.LANES), memory.partition_specs()
  )
  return jax.tree.map(function, memory, axes, *others)


def layer_lens(config: schema.ModelConfig, mem_len: int) -> tuple[int, ...]:
  """M of each layer, N (docs/specification.md, section 7)."""
  pairs = config.memory_lens or ((1, 0),)
  pattern = [most for count, most in pairs for _ in range(count)]
  repeats = config.num_layers // len(pattern)
  return tuple(min(mem_len, most or mem_len) for most in pattern * repeats)


def empty(
  config: schema.ModelConfig,
  *,
  batch_size: int,
  mem_len: int,
  compressed_len: int = 0,
) -> Memory:
  """Memory before the first token.

  With M = 0 a model has no recurrence, and nothing to compress.

  If `memory_start` is "masked" the empty positions are hidden; the original
  PyTorch code starts without any. "zeros" lets queries attend to M zero
  vectors, as TensorFlow and HuggingFace do (docs/specification.md, section 7).
  """

  def zeros(layers, count):
    shape = (layers, batch_size, count, config.model_dim)
    return jnp.zeros(shape, jnp.dtype(config.dtype))

  lens = layer_lens(config, mem_len)
  groups = [
    zeros(len([*layers]), own) for own, layers in itertools.groupby(lens)
  ]
  length = max(lens) if config.memory_start == "zeros" else 0
  compressed = mem_len and compressed_len
  return Memory(
    hiddens_of(groups),
    jnp.full((batch_size,), length, jnp.int32),
    zeros(config.num_layers, compressed_len) if compressed else None,
  )


def hiddens_of(groups: list[jax.Array]) -> shapes.Hiddens:
  """The hidden states of all layers from those of each group, [n, B, M, D]."""
  return tuple(groups) if len(groups) > 1 else groups[0]


def reset(
  memory: Memory, rows: jt.Bool[shapes.Array, "B"], *, start: str
) -> Memory:
  """Forgets the given lanes, as if their next token were the first."""
  if start == "zeros":
    forgotten = rows[None, :, None, None]
    hiddens = jax.tree.map(
      lambda group: jnp.where(forgotten, 0, group), memory.hiddens
    )
    return memory._replace(hiddens=hiddens)
  # Old states stay in place, but no query can see past `length`.
  return memory._replace(length=jnp.where(rows, 0, memory.length))


def append(
  memory: Memory,
  hiddens: shapes.Hiddens,
  resets: shapes.Resets,
  *,
  with_gradient: bool = False,
  compress: Callable[[jax.Array], jax.Array] | None = None,
) -> Memory:
  """The last M of the old and the new states; gradients stop at the new ones.

  `memory` is what the segment started from, after `reset` of whole lanes, and
  `hiddens` [n, B, T, D] are the inputs of each layer. Everything before the
  segment's last reset is forgotten. `with_gradient` lets gradients pass. Of the
  T states that leave, [N, B, T, D], `compress` makes compressed ones,
  [N, B, T / c, D].
  """
  if memory.mem_len == 0:
    return memory
  new = hiddens if with_gradient else jax.lax.stop_gradient(hiddens)
  both = jax.tree.map(_with_new, memory.hiddens, new)
  segment_len, capacity = resets.shape[1], memory.mem_len
  compressed = None
  if memory.compressed is not None:
    assert compress is not None
    slots = compress(both[:, :, :segment_len])
    capacity += memory.compressed_len * (segment_len // slots.shape[2])
    slots = jnp.concatenate([memory.compressed, slots], axis=2)
    compressed = slots[:, :, -memory.compressed_len :]
  length = visibility.next_length(
    memory.length, resets, segment_len, mem_len=capacity
  )
  kept = jax.tree.map(lambda states: states[:, :, segment_len:], both)
  return Memory(kept, length, compressed)


def leaving(
  memory: Memory, hiddens: jt.Float[shapes.Array, "N B T D"]
) -> jt.Float[shapes.Array, "N B T D"]:
  """The states that `append` drops from M, oldest first."""
  return _with_new(memory.hiddens, hiddens)[:, :, : hiddens.shape[2]]


def _with_new(hiddens, new):
  """[n, B, M+T, D]."""
  return jnp.concatenate([hiddens, new.astype(hiddens.dtype)], axis=2)


def split_lanes(memory: shapes.PyTree, parts: int) -> shapes.PyTree:
  """Deals the lanes out to `parts` memories, stacked on a new first axis.

  Neighbouring lanes go to different parts, so that no lane leaves its device.
  """

  def split(array, axis):
    return split_axis(array, axis, parts)

  return _map_lanes(split, memory)


def split_axis(array: jax.Array, axis: int, parts: int) -> jax.Array:
  """Splits the lanes on one axis, [.., B, ..], as `split_lanes` does."""
  lanes = array.shape[axis] // parts
  shape = (*array.shape[:axis], lanes, parts, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis + 1, 0)


def merge_lanes(memories: shapes.PyTree) -> shapes.PyTree:
  """Undoes `split_lanes`."""

  def merge(array, axis):
    moved = jnp.moveaxis(array, 0, axis + 1)
    lanes = moved.shape[axis] * moved.shape[axis + 1]  # Memory can be empty.
    shape = (*moved.shape[:axis], lanes, *moved.shape[axis + 2 :])
    return moved.reshape(shape)

  return _map_lanes(merge, memories)


def with_lanes(memory: shapes.PyTree, lanes: int) -> shapes.PyTree:
  """Drops the last lanes or adds empty ones, split by lanes over the mesh."""

  def resize(array, axis, spec):
    missing = lanes - array.shape[axis]
    if missing == 0:
      return array
    if missing < 0:
      return jax.lax.slice_in_dim(array, 0, lanes, axis=axis)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    return jax.lax.with_sharding_constraint(jnp.pad(array, widths), spec)

  return _map_lanes(resize, memory, memory.partition_specs())


def reach(
  memory: Memory, resets: shapes.Resets, *, rate: int = 1, **rule: Any
) -> shapes.Reach:
  """`visible_distance` for a group's memory of hidden states; `rate` is c."""
  length = memory.length
  if memory.compressed is not None:
    length = visibility.visible_positions(length, memory.mem_len, rate=rate)
  positions = memory.compressed_len + memory.mem_len
  return visibility.visible_distance(length, resets, positions, **rule)
