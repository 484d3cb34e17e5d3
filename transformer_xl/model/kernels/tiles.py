"""Work on one tile of scores, for the forward and the backward kernel.

Everything runs inside a Pallas kernel, on values in registers and VMEM. Shapes:
Bq queries and Bk keys of a tile, W rows of its window, C lanes of a block.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from transformer_xl import shapes
from transformer_xl.model import attention_dropout
from transformer_xl.model.kernels import tiling as tiling_lib

# Scores are in units of log 2, as the hardware computes powers of two.
LOG2E = math.log2(math.e)
# Finite, since the difference of two infinities is not a number, and small
# enough that it stays finite when a maximum is subtracted.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
_SUBLANES = 8

matmul = functools.partial(
  jax.lax.dot_general, preferred_element_type=jnp.float32
)
ROWS_BY_COLUMNS = (((1,), (0,)), ((), ()))  # a @ b
ROWS_BY_ROWS = (((1,), (1,)), ((), ()))  # a @ b.T
COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))  # a.T @ b


def heads(tiling: tiling_lib.Tiling) -> list[jt.Bool[shapes.Array, "1 C"]]:
  """For each head of a block, which lanes are its own.

  A head's numbers are never moved to other lanes. Zeros in the lanes of all
  other heads keep those out of its products, at no cost for the matrix unit.
  """
  lane = jax.lax.broadcasted_iota(jnp.int32, (1, tiling.block_width), 1)
  starts = range(0, tiling.block_width, tiling.head_width)
  return [
    (lane >= start) & (lane < start + tiling.head_width) for start in starts
  ]


def clear_padding(ref: Any, length: int) -> None:
  """Zeros the rows from `length` on, where a block exceeds its array.

  Those rows are uninitialised, and 0 times NaN is NaN.
  """
  start = length // tiling_lib.ROWS * tiling_lib.ROWS
  if length >= ref.shape[0]:
    return
  shape = (ref.shape[0] - start, 1)
  row = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + start
  ref[start:] = jnp.where(row < length, ref[start:], jnp.zeros((), ref.dtype))


def column(
  row: jt.Shaped[shapes.Array, "1 Bq"],
) -> jt.Shaped[shapes.Array, "Bq 1"]:
  """Turns a row of numbers, one for each query, upright."""
  return jnp.broadcast_to(row, (tiling_lib.LANES, row.shape[1])).T[:, :1]


def row(
  column: jt.Shaped[shapes.Array, "Bq 1"],
) -> jt.Shaped[shapes.Array, "1 Bq"]:
  """The inverse of `column`."""
  shape = (column.shape[0], tiling_lib.LANES)
  return jnp.broadcast_to(column, shape).T[:1]


def visible(
  reach: jt.Int[shapes.Array, "Bq 1"],
  tile: tiling_lib.Tile,
  *,
  position: int,
) -> jt.Bool[shapes.Array, "Bq Bk"]:
  """Which keys each query may attend to; see `memory.reach`.

  Args:
    reach: the queries' largest visible distances.
    tile: of keys.
    position: of the first query, counted like the keys'.
  """
  query = jax.lax.broadcasted_iota(jnp.int32, reach.shape, 0) + position
  key = jax.lax.broadcasted_iota(jnp.int32, (1, tile.num_keys), 1) + tile.key
  result = key >= query - reach
  if tile.key + tile.num_keys > position + 1:
    result &= key <= query
  return result


def dropout(
  seeds_ref: Any, head: int, start: int, tiling: tiling_lib.Tiling
) -> Callable[[jax.Array, tiling_lib.Tile], jax.Array]:
  """A function that applies dropout to the values of a tile, [Bq, Bk].

  Args:
    seeds_ref: of all lanes and heads, [B, H].
    head: of the block.
    start: the block's first query.
    tiling: sizes.
  """
  if not tiling.dropout_rate:
    return lambda values, tile: values
  first = pl.program_id(0) * tiling.heads_per_block
  seed = seeds_ref[pl.program_id(1), first + head]
  shape = (tiling.query_block, 1)
  query = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + start

  def drop(values, tile):
    shape = (1, tile.num_keys)
    key = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + tile.key
    kept = attention_dropout.kept(seed, query, key, rate=tiling.dropout_rate)
    return jnp.where(kept, values, 0)

  return drop


def unless_hidden(
  reach: jt.Int[shapes.Array, "Bq 1"],
  tile: tiling_lib.Tile,
  add: Callable[[shapes.PyTree], shapes.PyTree],
  carry: shapes.PyTree,
  *,
  position: int,
) -> shapes.PyTree:
  """Lets a tile add to the carry, if any query of the block can see it.

  Tiles with the block's own keys are always visible.

  Args:
    reach: the queries' largest visible distances.
    tile: of keys.
    add: computes the next carry.
    carry: from the tiles before.
    position: of the first query, counted like the keys'.
  """
  end = tile.key + tile.num_keys
  if end > position:
    return add(carry)
  query = jax.lax.broadcasted_iota(jnp.int32, reach.shape, 0) + position
  farthest = jnp.min(query - reach)
  return jax.lax.cond(farthest < end, add, lambda carry: carry, carry)


def scores(
  content_query: jt.Float[shapes.Array, "Bq C"],
  position_query: jt.Float[shapes.Array, "Bq C"],
  key: jt.Float[shapes.Array, "Bk C"],
  window: jt.Float[shapes.Array, "W C"],
  *,
  interpret: bool,
) -> jt.Float[shapes.Array, "Bq Bk"]:
  """Content and position terms of one head, before the mask."""
  content = matmul(content_query, key, ROWS_BY_ROWS)
  position = matmul(position_query, window, ROWS_BY_ROWS)
  # Key j of row i is column Bq - 1 - i + j of the window.
  rows, columns = position.shape
  shifted = roll_rows(position, columns - (rows - 1), interpret=interpret)
  return content + shifted[:, : key.shape[0]]


def to_window_upside_down(
  values: jt.Float[shapes.Array, "Bq Bk"],
  window_len: int,
  *,
  interpret: bool,
) -> jt.Float[shapes.Array, "Bq W"]:
  """From columns of keys to those of the window, last query first.

  The shift decreases from row to row, and the hardware only increases it.
  """
  padding = jnp.zeros((values.shape[0], window_len - values.shape[1]))
  wide = jnp.concatenate([upside_down(values), padding], axis=1)
  return roll_rows(wide, 0, interpret=interpret)


def roll_rows(
  values: jt.Float[shapes.Array, "Bq W"], shift: int, *, interpret: bool
) -> jt.Float[shapes.Array, "Bq W"]:
  """Rotates row i to the right by `shift` + i."""
  if not interpret:
    return pltpu.roll(values, shift, 1, stride=1, stride_axis=0)
  # A gather instead: interpreting a roll takes one operation for each row.
  row = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
  column = jax.lax.broadcasted_iota(jnp.int32, values.shape, 1)
  source = (column - row - shift) % values.shape[1]
  return jnp.take_along_axis(values, source, axis=1)


def upside_down(
  values: jt.Float[shapes.Array, "Bq X"],
) -> jt.Float[shapes.Array, "Bq X"]:
  """Reverses the rows, exactly; in float32, a multiple of 8 rows.

  Mosaic has no reversal, but shuffling a register's eight rows is free as
  part of a load.
  """
  registers = values.reshape(-1, _SUBLANES, values.shape[1])
  sublane = jax.lax.broadcasted_iota(jnp.int32, registers.shape, 1)
  shuffled = jnp.take_along_axis(
    registers, _SUBLANES - 1 - sublane, axis=1, mode="promise_in_bounds"
  )
  return jnp.concatenate([*shuffled][::-1], axis=0)


def block_specs(tiling: tiling_lib.Tiling) -> dict[str, pl.BlockSpec]:
  """Blocks of the arrays for a grid of [blocks of heads, lanes of text]."""
  width = tiling.block_width

  def per_lane(rows):
    return pl.BlockSpec((None, rows, width), lambda head, b: (b, 0, head))

  def shared(rows):
    return pl.BlockSpec((rows, width), lambda head, b: (0, head))

  lse = (None, None, tiling.heads_per_block, tiling.query_len)
  reach = (None, 1, tiling.query_len)
  return {
    "query": per_lane(tiling.query_len),
    "key": per_lane(tiling.key_len),
    "position": shared(tiling.position_len),
    "bias": shared(1),
    "seeds": pl.BlockSpec(memory_space=pltpu.SMEM),
    "reach": pl.BlockSpec(reach, lambda head, b: (b, 0, 0)),
    "lse": pl.BlockSpec(lse, lambda head, b: (b, head, 0, 0)),
  }


def compiler_params(
  tiling: tiling_lib.Tiling, itemsize: int
) -> pltpu.CompilerParams:
  """Lanes run in order, since sums over them are kept on the chip."""
  needed = tiling_lib.vmem_bytes(tiling, itemsize)
  # The estimate is rough, and the compiler's default limit is 16 MiB.
  limit = needed + (8 << 20) if needed > 8 << 20 else None
  return pltpu.CompilerParams(
    dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=limit
  )


def cost_estimate(
  tiling: tiling_lib.Tiling,
  arrays: tuple[jax.Array | jax.ShapeDtypeStruct, ...],
  *,
  steps: int,
  products: tuple[int, int],
) -> pl.CostEstimate:
  """Cost of a kernel, for XLA's scheduler.

  Args:
    tiling: sizes.
    arrays: all that is read or written, of any shapes.
    steps: of the grid.
    products: how many matrix products there are of scores by key, and by row
      of the window.
  """
  by_key, by_window = tiling_lib.num_scores(tiling)
  sums = products[0] * by_key + products[1] * by_window
  return pl.CostEstimate(
    flops=2 * tiling.block_width * sums * steps,
    transcendentals=by_key * steps,
    bytes_accessed=sum(
      math.prod(array.shape) * array.dtype.itemsize for array in arrays
    ),
  )
