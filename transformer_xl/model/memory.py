"""Segment memory: the hidden states each layer may still attend to.

Memory is a value. A segment takes one and returns the next; there is no other
state. Hidden states are right-aligned, newest last, and `length` is how many
of them a lane may see, so a lane forgets by setting a number. A compressed
memory holds the states before them (Rae et al. 2020). This file alone knows how
the arrays are laid out.

Shapes: N layers, B lanes, M memory length, C compressed slots, c states in each
of them, T segment length, D model width.
"""

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


class Memory(NamedTuple):
  """What one segment hands to the next."""

  hiddens: jt.Float[shapes.Array, "N B M D"]  # Inputs of each layer.
  # Visible tokens, from the right: one a hidden state, c a compressed slot.
  length: jt.Int[shapes.Array, "B"]
  # The states before `hiddens`, newest last.
  compressed: jt.Float[shapes.Array, "N B C D"] | None = None

  @property
  def mem_len(self) -> int:
    """M."""
    return self.hiddens.shape[2]

  @property
  def compressed_len(self) -> int:
    """C."""
    return 0 if self.compressed is None else self.compressed.shape[2]

  @property
  def states(self) -> jt.Float[shapes.Array, "N B P D"]:
    """The P = C + M positions of memory, oldest first."""
    if self.compressed is None:
      return self.hiddens
    return jnp.concatenate([self.compressed, self.hiddens], axis=2)

  @property
  def is_empty(self) -> bool:
    """Whether there is nothing to store, because M is 0."""
    return self.hiddens.size == 0

  @property
  def arrays(self) -> dict[str, Any]:
    """What there is to save, by name."""
    arrays = self._asdict()
    return {name: arrays[name] for name in arrays if arrays[name] is not None}

  @property
  def sizes(self) -> list[int]:
    """N, B, M, D and C if there is one, for a checkpoint's metadata."""
    compressed = [] if self.compressed is None else [self.compressed_len]
    return [*self.hiddens.shape, *compressed]

  def partition_specs(self) -> "Memory":
    """How a mesh splits it: by lanes.

    Hidden states stay whole over `tensor`. Split by width as well, XLA's
    partitioner of jax 0.10.2 computes other gradients on a mesh of 2 x 2 x 2
    (test_sharding.py).
    """
    states: Any = P(None, mesh_lib.LANES)
    length: Any = P(mesh_lib.LANES)
    compressed = None if self.compressed is None else states
    return Memory(states, length, compressed)


def _map_lanes(function, memory: Any, *others: Any) -> Any:
  """Applies `function(array, axis of the lanes, ...)` to all arrays.

  The memory is of any kind that knows its `partition_specs`.
  """
  axes = jax.tree.map(
    lambda spec: spec.index(mesh_lib.LANES), memory.partition_specs()
  )
  return jax.tree.map(function, memory, axes, *others)


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

  def zeros(count):
    shape = (config.num_layers, batch_size, count, config.model_dim)
    return jnp.zeros(shape, jnp.dtype(config.dtype))

  length = mem_len if config.memory_start == "zeros" else 0
  return Memory(
    zeros(mem_len),
    jnp.full((batch_size,), length, jnp.int32),
    zeros(compressed_len) if mem_len and compressed_len else None,
  )


def reset(
  memory: Memory, rows: jt.Bool[shapes.Array, "B"], *, start: str
) -> Memory:
  """Forgets the given lanes, as if their next token were the first."""
  if start == "zeros":
    forgotten = rows[None, :, None, None]
    return memory._replace(hiddens=jnp.where(forgotten, 0, memory.hiddens))
  # Old states stay in place, but no query can see past `length`.
  return memory._replace(length=jnp.where(rows, 0, memory.length))


def append(
  memory: Memory,
  hiddens: jt.Float[shapes.Array, "N B T D"],
  resets: shapes.Resets,
  *,
  with_gradient: bool = False,
  compress: Callable[[jax.Array], jax.Array] | None = None,
) -> Memory:
  """The last M of the old and the new states; gradients stop at the new ones.

  `memory` is what the segment started from, after `reset` of whole lanes, and
  `hiddens` are the inputs of each layer. Everything before the segment's last
  reset is forgotten. `with_gradient` lets gradients pass. Of the T states that
  leave, [N, B, T, D], `compress` makes compressed ones, [N, B, T / c, D].
  """
  if memory.mem_len == 0:
    return memory
  new = hiddens if with_gradient else jax.lax.stop_gradient(hiddens)
  both = _with_new(memory, new)
  segment_len, capacity = hiddens.shape[2], memory.mem_len
  compressed = None
  if memory.compressed is not None:
    assert compress is not None
    slots = compress(both[:, :, :segment_len])
    capacity += memory.compressed_len * (segment_len // slots.shape[2])
    slots = jnp.concatenate([memory.compressed, slots], axis=2)
    compressed = slots[:, :, -memory.compressed_len :]
  length = next_length(memory.length, resets, segment_len, mem_len=capacity)
  return Memory(both[:, :, segment_len:], length, compressed)


def leaving(
  memory: Memory, hiddens: jt.Float[shapes.Array, "N B T D"]
) -> jt.Float[shapes.Array, "N B T D"]:
  """The states that `append` drops from M, oldest first."""
  return _with_new(memory, hiddens)[:, :, : hiddens.shape[2]]


def _with_new(memory, hiddens):
  """[N, B, M+T, D]."""
  new = hiddens.astype(memory.hiddens.dtype)
  return jnp.concatenate([memory.hiddens, new], axis=2)


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


def next_length(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets,
  count: int | jax.Array,
  *,
  mem_len: int | jax.Array,
) -> jt.Int[shapes.Array, "B"]:
  """Visible length, at most `mem_len`, after `count` tokens of a segment.

  If they are not all of it, it has no resets.
  """
  document_len = positions_since_reset(resets)[:, -1] + 1
  length = jnp.minimum(length + count, document_len)
  return jnp.minimum(length, mem_len)


def whole_slots(
  length: jt.Int[shapes.Array, "B"], mem_len: int | jax.Array, *, rate: int
) -> jt.Int[shapes.Array, "B"]:
  """Visible compressed slots: those whose c states are all visible."""
  return jnp.maximum(length - mem_len, 0) // rate


def visible_positions(
  length: jt.Int[shapes.Array, "B"], mem_len: int | jax.Array, *, rate: int
) -> jt.Int[shapes.Array, "B"]:
  """Visible hidden states and compressed slots, for a length in tokens."""
  slots = whole_slots(length, mem_len, rate=rate)
  return jnp.minimum(length, mem_len) + slots


def positions_since_reset(resets: shapes.Resets) -> shapes.Reach:
  """Distance from each token back to the start of its document.

  Larger than any distance where no document has started in the segment yet.
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)[None]
  never = jnp.iinfo(jnp.int32).max // 2
  last = jax.lax.cummax(jnp.where(resets, position, -never), axis=1)
  return position - last


def reach(
  memory: Memory, resets: shapes.Resets, *, rate: int = 1, **rule: Any
) -> shapes.Reach:
  """`visible_distance` for a memory of hidden states; `rate` is c."""
  length = memory.length
  if memory.compressed is not None:
    length = visible_positions(length, memory.mem_len, rate=rate)
  positions = memory.compressed_len + memory.mem_len
  return visible_distance(length, resets, positions, **rule)


def visible_distance(
  length: jt.Int[shapes.Array, "B"],
  resets: shapes.Resets,
  mem_len: int,
  *,
  same_length: bool,
  window: str,
) -> shapes.Reach:
  """The largest distance at which each query may attend.

  A key is visible if and only if 0 <= distance <= reach, so one number per
  query replaces all masks. A token always sees itself. `length` is that of each
  lane's visible memory, and `mem_len` its largest, both in positions: M, or
  C + M.

  With `same_length` all queries see the same number of keys, so that results do
  not depend on how the text is cut into segments. `window` is that number,
  "mem_len" (PyTorch, HuggingFace) or "mem_len_plus_one" (TensorFlow, NVIDIA).
  """
  position = jnp.arange(resets.shape[1], dtype=jnp.int32)
  result = length[:, None] + position[None, :]
  result = jnp.minimum(result, positions_since_reset(resets))
  if same_length:
    distance = mem_len if window == "mem_len_plus_one" else mem_len - 1
    result = jnp.minimum(result, max(distance, 0))
  return result
