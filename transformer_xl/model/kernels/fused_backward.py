"""Backward kernel of fused attention: all gradients in one pass over tiles.

Shapes: B lanes of text, T queries, K keys, C lanes of a block, R position keys,
n blocks of heads, G heads in a block.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from transformer_xl import shapes
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling as tiling_lib

_INPUTS = (
  *("query", "key", "key", "position", "bias", "bias", "reach", "seeds"),
  *("lse", "query", "query"),
)
_OUTPUTS = ("query", "key", "key", "position", "bias", "bias")


class _Refs(NamedTuple):
  """Inputs, then gradients of the first six, then sums over query blocks."""

  query: Any
  key: Any
  value: Any
  position_key: Any
  content_bias: Any
  position_bias: Any
  reach: Any
  seeds: Any
  lse: Any
  output: Any
  output_gradient: Any
  d_query: Any
  d_key: Any
  d_value: Any
  d_position_key: Any
  d_content_bias: Any
  d_position_bias: Any
  key_sum: Any
  value_sum: Any


class _Head(NamedTuple):
  """Values that one head's tiles share; the lanes of other heads are 0."""

  content_query: jax.Array  # [Bq, C], scaled to give scores.
  position_query: jax.Array
  upside_down_query: jax.Array  # The latter, without the factor `LOG2E`.
  output_gradient: jax.Array  # Scaled up to compensate for dropout.
  weighted: jax.Array  # Output times its gradient, summed; [Bq, 1].
  lse: jax.Array  # [Bq, 1]


def backward(
  arrays: tuple[jax.Array, ...],
  reach: shapes.Reach,
  seeds: jax.Array,
  output: jax.Array,
  lse: jax.Array,
  output_gradient: jax.Array,
  *,
  tiling: tiling_lib.Tiling,
) -> list[jax.Array]:
  """Gradients of the arrays, summed over lanes where lanes share an array.

  Args:
    arrays: of the forward pass; see `fused_forward.forward`.
    reach: [B, T], T padded to whole blocks.
    seeds: of dropout, [B, H].
    output: of the forward pass, [B, T, n * C].
    lse: of the forward pass.
    output_gradient: likewise.
    tiling: sizes.
  """
  query = arrays[0]
  lanes, num_blocks = query.shape[0], query.shape[2] // tiling.block_width
  specs = tiles.block_specs(tiling)
  # Sums over lanes stay in float32 until they are whole.
  dtypes = [*[array.dtype for array in arrays[:3]], *[jnp.float32] * 3]
  outputs = [
    jax.ShapeDtypeStruct(array.shape, dtype)
    for array, dtype in zip(arrays, dtypes, strict=True)
  ]
  return pl.pallas_call(
    functools.partial(_kernel, tiling=tiling),
    name="relative_attention_gradient",
    grid=(num_blocks, lanes),
    in_specs=[specs[name] for name in _INPUTS],
    out_specs=[specs[name] for name in _OUTPUTS],
    out_shape=outputs,
    scratch_shapes=[
      pltpu.VMEM((tiling.key_len, tiling.block_width), jnp.float32)
    ]
    * 2,
    compiler_params=tiles.compiler_params(tiling, query.dtype.itemsize),
    cost_estimate=tiles.cost_estimate(
      tiling,
      (*arrays, output, output_gradient, *outputs),
      steps=num_blocks * lanes,
      products=(5, 3),
    ),
    interpret=tiling.interpret,
  )(*arrays, reach[:, None], seeds, lse, output, output_gradient)


def _kernel(*refs, tiling):
  refs = _Refs(*refs)
  for ref in refs.query, refs.output, refs.output_gradient:
    tiles.clear_padding(ref, tiling.segment_len)
  for ref in refs.key, refs.value:
    tiles.clear_padding(ref, tiling.context_len)
  tiles.clear_padding(refs.position_key, tiling.num_positions)

  @pl.when(pl.program_id(1) == 0)
  def _start_sums_over_lanes():
    for ref in refs.d_position_key, refs.d_content_bias, refs.d_position_bias:
      ref[...] = jnp.zeros_like(ref)

  for ref in refs.key_sum, refs.value_sum:
    ref[...] = jnp.zeros_like(ref)
  for start in tiling.query_starts():
    _query_block(refs, start, tiling)
  # The keys' gradient was computed from queries with the factor LOG2E.
  key_gradient = refs.key_sum[...] * (1 / tiles.LOG2E)
  refs.d_key[...] = key_gradient.astype(refs.d_key.dtype)
  refs.d_value[...] = refs.value_sum[...].astype(refs.d_value.dtype)


def _query_block(refs, start, tiling):
  """Adds the contribution of the queries from row `start` on."""
  queries = slice(start, start + tiling.query_block)
  reach = tiles.column(refs.reach[:, queries])
  query = refs.query[queries].astype(jnp.float32)
  content_total = jnp.zeros_like(query)
  position_total = jnp.zeros_like(query)
  for index, lanes in enumerate(tiles.heads(tiling)):
    head = _head(refs, query, queries, lanes, index, tiling)
    drop = tiles.dropout(refs.seeds, index, start, tiling)
    carry = jnp.zeros_like(query), jnp.zeros_like(query)
    for tile in tiling.tiles(start):
      add = functools.partial(
        _tile, head, drop, reach, refs, tile, start, tiling
      )
      carry = tiles.unless_hidden(
        reach, tile, add, carry, position=tiling.mem_len + start
      )
    content, position = carry
    content_total = jnp.where(lanes, content, content_total)
    position_total = jnp.where(
      lanes, tiles.upside_down(position), position_total
    )
  scale = 1 / math.sqrt(tiling.head_dim)
  total = (content_total + position_total) * scale
  refs.d_query[queries] = total.astype(refs.d_query.dtype)
  refs.d_content_bias[...] += scale * _row_sum(content_total)
  refs.d_position_bias[...] += scale * _row_sum(position_total)


def _head(refs, query, queries, lanes, index, tiling):
  scale = tiles.LOG2E / math.sqrt(tiling.head_dim)
  dtype = refs.key.dtype
  gradient = refs.output_gradient[queries].astype(jnp.float32)
  output = refs.output[queries].astype(jnp.float32)
  weighted = jnp.where(lanes, output * gradient, 0)
  raised = gradient
  if tiling.dropout_rate:
    raised = gradient * (1 / (1 - tiling.dropout_rate))
  content = jnp.where(lanes, (query + refs.content_bias[...]) * scale, 0)
  position = jnp.where(lanes, (query + refs.position_bias[...]) * scale, 0)
  return _Head(
    content.astype(dtype),
    position.astype(dtype),
    tiles.upside_down(position * (1 / tiles.LOG2E)).astype(dtype),
    jnp.where(lanes, raised, 0).astype(dtype),
    jnp.sum(weighted, axis=1, keepdims=True),
    tiles.column(refs.lse[index : index + 1, queries]),
  )


def _tile(head, drop, reach, refs, tile, start, tiling, carry):
  """Adds to the sums, and to the gradients of q + u and, reversed, of q + v."""
  content_gradient, position_gradient = carry
  key, window = refs.key[tile.keys], refs.position_key[tile.rows]
  dtype = key.dtype
  scores = tiles.scores(
    head.content_query,
    head.position_query,
    key,
    window,
    interpret=tiling.interpret,
  )
  visible = tiles.visible(reach, tile, position=tiling.mem_len + start)
  weights = jnp.where(visible, jnp.exp2(scores - head.lse), 0)
  kept = drop(weights, tile).astype(dtype)
  refs.value_sum[tile.keys] += tiles.matmul(
    kept, head.output_gradient, tiles.COLUMNS_BY_COLUMNS
  )
  d_weights = tiles.matmul(
    head.output_gradient, refs.value[tile.keys], tiles.ROWS_BY_ROWS
  )
  d_scores = weights * (drop(d_weights, tile) - head.weighted)
  narrow = d_scores.astype(dtype)
  refs.key_sum[tile.keys] += tiles.matmul(
    narrow, head.content_query, tiles.COLUMNS_BY_COLUMNS
  )
  content_gradient += tiles.matmul(narrow, key, tiles.ROWS_BY_COLUMNS)
  by_window = tiles.to_window_upside_down(
    d_scores, tile.window_len, interpret=tiling.interpret
  ).astype(dtype)
  refs.d_position_key[tile.rows] += tiles.matmul(
    by_window, head.upside_down_query, tiles.COLUMNS_BY_COLUMNS
  )
  position_gradient += tiles.matmul(by_window, window, tiles.ROWS_BY_COLUMNS)
  return content_gradient, position_gradient


def _row_sum(values):
  return jnp.sum(values, axis=0, keepdims=True)
