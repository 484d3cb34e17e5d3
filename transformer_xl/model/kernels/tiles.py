"""Fused attention's kernels: how they are called, and work on a tile of scores.

Everything but `call` runs inside a Pallas kernel, on values in registers and
VMEM. Shapes: Bq queries and Bk keys of a tile, W rows of its window, C lanes of
a block of G heads. `reach` [Bq, 1] holds the queries' largest visible
distances.
"""

import functools
import math
import types
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import tiling as tiling_lib

# Arrays that may be absent, and their gradients with them.
BIASES = ("content_bias", "position_bias")
_OPTIONAL = ("position_key", *BIASES)
# Scores are in units of log 2, as the hardware computes powers of two.
LOG2E = math.log2(math.e)
# Finite, since the difference of two infinities is not a number, and small
# enough that it stays finite when a maximum is subtracted.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
_SUBLANES = 8

_iota = functools.partial(jax.lax.broadcasted_iota, jnp.int32)


class Kernel(NamedTuple):
  """A kernel for a block of heads in a lane of text.

  Attributes:
    body: takes references by name, and the sizes of blocks.
    name: in profiles.
    products: how many matrix products of scores it has by key, and by row of
      the window, for the estimate of its cost.
    sums: names of float32 scratch space [K, C] that it needs.
  """

  body: Callable[[types.SimpleNamespace, tiling_lib.Tiling], None]
  name: str
  products: tuple[int, int]
  sums: tuple[str, ...] = ()


def call(
  kernel: Kernel,
  tiling: tiling_lib.Tiling,
  *,
  inputs: dict[str, jax.Array],
  outputs: dict[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
  """Runs a kernel for each block of heads in each lane of text.

  The kernel has references to the arrays `inputs`, to `outputs` of given
  shapes, where `d_query` is the gradient of `query`, and to its sums.
  References to what is absent are None.
  """
  names = (*inputs, *outputs, *kernel.sums)
  gradients = [f"d_{name}" for name in _OPTIONAL]
  absent = ("slopes", *_OPTIONAL, *gradients)
  blocks = _block_specs(tiling)
  width = tiling.block_width
  query = inputs["query"]
  grid = (query.shape[2] // width, query.shape[0])
  steps = math.prod(grid)
  by_key, by_window = tiling_lib.num_scores(tiling)
  scores = kernel.products[0] * by_key + kernel.products[1] * by_window
  small = ("reach", "seeds", "slopes", "lse")
  moved: list[jax.Array | jax.ShapeDtypeStruct]
  moved = [inputs[name] for name in inputs if name not in small]
  moved += outputs.values()
  vmem = tiling_lib.vmem_bytes(tiling, query.dtype.itemsize)

  def run(*refs: jax.Ref) -> None:
    by_name = dict.fromkeys(absent) | dict(zip(names, refs, strict=True))
    kernel.body(types.SimpleNamespace(**by_name), tiling)

  results = pl.pallas_call(
    run,
    name=kernel.name,
    grid=grid,
    in_specs=[blocks[name] for name in inputs],
    out_specs=[blocks[name.removeprefix("d_")] for name in outputs],
    out_shape=[*outputs.values()],
    scratch_shapes=[pltpu.VMEM((tiling.key_len, width), jnp.float32)]
    * len(kernel.sums),
    compiler_params=pltpu.CompilerParams(
      # Lanes run in order, since sums over them are kept on the chip.
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiling_lib.vmem_limit_bytes(vmem),
    ),
    cost_estimate=pl.CostEstimate(  # For XLA's scheduler.
      flops=2 * width * scores * steps,
      transcendentals=by_key * steps,
      bytes_accessed=sum(array.size * array.dtype.itemsize for array in moved),
    ),
    interpret=tiling.interpret,
  )(*inputs.values())
  return dict(zip(outputs, results, strict=True))


def _block_specs(tiling: tiling_lib.Tiling) -> dict[str, pl.BlockSpec]:
  """Blocks of the arrays for a grid of [blocks of heads, lanes of text]."""
  width = tiling.block_width

  def per_lane(rows: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, rows, width), lambda head, b: (b, 0, head))

  def shared(rows: int) -> pl.BlockSpec:
    return pl.BlockSpec((rows, width), lambda head, b: (0, head))

  lse = (None, None, tiling.heads_per_block, tiling.query_len)
  reach = (None, 1, tiling.query_len)
  queries = ("query", "output", "output_gradient")
  return {
    **dict.fromkeys(queries, per_lane(tiling.query_len)),
    **dict.fromkeys(("key", "value"), per_lane(tiling.key_len)),
    "position_key": shared(tiling.position_len),
    **dict.fromkeys(BIASES, shared(1)),
    **dict.fromkeys(("seeds", "slopes"), pl.BlockSpec(memory_space=pltpu.SMEM)),
    "reach": pl.BlockSpec(reach, lambda head, b: (b, 0, 0)),
    "lse": pl.BlockSpec(lse, lambda head, b: (b, head, 0, 0)),
  }


def head_masks(tiling: tiling_lib.Tiling) -> list[jax.Array]:
  """Masks [1, C] of the lanes that belong to each head of a block.

  A head's numbers are never moved to other lanes. Zeros in the lanes of all
  other heads keep those out of its products, at no cost for the matrix unit.
  """
  lane = _iota((1, tiling.block_width), 1)
  starts = range(0, tiling.block_width, tiling.head_width)
  return [
    (lane >= start) & (lane < start + tiling.head_width) for start in starts
  ]


def clear_padding(
  refs: types.SimpleNamespace, tiling: tiling_lib.Tiling, *more: jax.Ref
) -> None:
  """Zeros the rows of inputs that are longer than their arrays.

  Those rows are uninitialised, and 0 times NaN is NaN. `more` are references
  to other arrays with a row for each query.
  """
  for ref in (refs.query, *more):
    _clear(ref, tiling.segment_len)
  for ref in (refs.key, refs.value):
    _clear(ref, tiling.mem_len + tiling.segment_len)
  if refs.position_key is not None:
    _clear(refs.position_key, tiling.num_positions)


def _clear(ref: jax.Ref, length: int) -> None:
  """Zeros the rows from `length` on."""
  start = length // tiling_lib.ROWS * tiling_lib.ROWS
  if length < ref.shape[0]:
    row = _iota((ref.shape[0] - start, 1), 0) + start
    ref[start:] = jnp.where(row < length, ref[start:], jnp.zeros((), ref.dtype))


def column(row: jax.Array) -> jax.Array:
  """Turns a row of numbers, one for each query, upright: [1, Bq] to [Bq, 1]."""
  return jnp.broadcast_to(row, (tiling_lib.LANES, row.shape[1])).T[:, :1]


def row(column: jax.Array) -> jax.Array:
  """Lays an upright row of numbers down again: [Bq, 1] to [1, Bq]."""
  shape = (column.shape[0], tiling_lib.LANES)
  return jnp.broadcast_to(column, shape).T[:1]


def biased(
  query: jax.Array,
  bias_ref: jax.Ref | None,
  head_mask: jax.Array,
  tiling: tiling_lib.Tiling,
) -> jax.Array:
  """A head's queries with u or v, [Bq, C], scaled to give scores."""
  if bias_ref is not None:
    query = query + bias_ref[...]
  return jnp.where(head_mask, query * (LOG2E / math.sqrt(tiling.head_dim)), 0)


def visible(
  reach: jax.Array, tile: tiling_lib.Tile, tiling: tiling_lib.Tiling
) -> jax.Array:
  """True where a query may attend to a key of the tile, [Bq, Bk]."""
  query = _iota(reach.shape, 0) + tiling.mem_len + tile.start
  key = _iota((1, tile.num_keys), 1)
  return (key >= query - reach) & (key <= query)


def kept_weights(
  seeds_ref: jax.Ref,
  head: int,
  tile: tiling_lib.Tile,
  tiling: tiling_lib.Tiling,
) -> jax.Array | None:
  """True where dropout keeps a head's weight, [Bq, Bk]; None for all."""
  if not tiling.dropout_rate:
    return None
  first = pl.program_id(0) * tiling.heads_per_block
  seed = seeds_ref[pl.program_id(1), first + head]
  query = _iota((tiling.query_block, 1), 0) + tile.start
  key = _iota((1, tile.num_keys), 1)
  return dropout_lib.keep_mask(seed, query, key, rate=tiling.dropout_rate)


def drop(values: jax.Array, kept: jax.Array | None) -> jax.Array:
  """Zeros the values that dropout does not keep; the others are not scaled."""
  return values if kept is None else jnp.where(kept, values, 0)


def product(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
  """Product of two matrices, over an axis of each, in float32."""
  axes = (((a_axis,), (b_axis,)), ((), ()))
  return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def scores(
  refs: types.SimpleNamespace,
  head: int,
  content: jax.Array,
  position: jax.Array,
  tile: tiling_lib.Tile,
  tiling: tiling_lib.Tiling,
) -> jax.Array:
  """All terms of one head's scores, before the mask, [Bq, Bk].

  `content` and `position` are its queries for either term, [Bq, C].
  """
  result = product(content, refs.key[: tile.num_keys], 1, 1)
  if tiling.has_positions:
    by_window = product(position, refs.position_key[tile.window], 1, 1)
    # Key j of row i is column Bq - 1 - i + j of the window.
    rows, columns = by_window.shape
    shift = columns - (rows - 1)
    shifted = roll_rows(by_window, shift, interpret=tiling.interpret)
    result += shifted[:, : tile.num_keys]
  if refs.slopes is not None:
    first = pl.program_id(0) * tiling.heads_per_block
    slope = refs.slopes[first + head] * LOG2E
    query = _iota((tiling.query_block, 1), 0) + tiling.mem_len + tile.start
    key = _iota((1, tile.num_keys), 1)
    result -= slope * (query - key).astype(jnp.float32)
  return result


def to_window_upside_down(
  values: jax.Array, tile: tiling_lib.Tile, tiling: tiling_lib.Tiling
) -> jax.Array:
  """Moves columns of keys to those of the window, [Bq, W], last query first.

  The shift decreases from row to row, and the hardware only increases it.
  """
  padding = jnp.zeros((values.shape[0], tile.window_len - values.shape[1]))
  wide = jnp.concatenate([upside_down(values), padding], axis=1)
  return roll_rows(wide, 0, interpret=tiling.interpret)


def roll_rows(
  values: jax.Array, shift: int | jax.Array, *, interpret: bool
) -> jax.Array:
  """Rotates row i of [Bq, W] to the right by `shift` + i."""
  if not interpret:
    return pltpu.roll(values, shift, 1, stride=1, stride_axis=0)
  # A gather instead: interpreting a roll takes one operation for each row.
  row = _iota(values.shape, 0)
  column = _iota(values.shape, 1)
  source = (column - row - shift) % values.shape[1]
  return jnp.take_along_axis(values, source, axis=1)


def upside_down(values: jax.Array) -> jax.Array:
  """Reverses the rows of [Bq, W], exactly; in float32, a multiple of 8 rows.

  Mosaic has no reversal, but shuffling a register's eight rows is free as
  part of a load.
  """
  registers = values.reshape(-1, _SUBLANES, values.shape[1])
  sublane = _iota(registers.shape, 1)
  shuffled = jnp.take_along_axis(
    registers, _SUBLANES - 1 - sublane, axis=1, mode="promise_in_bounds"
  )
  return jnp.concatenate([*shuffled][::-1], axis=0)
