"""Forward kernel of fused attention: one block of heads in one lane of text.

Shapes: B lanes of text, T queries, K keys, C lanes of a block, R position keys,
n blocks of heads, G heads in a block.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from transformer_xl import shapes
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling as tiling_lib

_INPUTS = ("query", "key", "key", "position", "bias", "bias")


def forward(
  arrays: tuple[jax.Array, ...],
  reach: shapes.Reach,
  seeds: jax.Array,
  *,
  tiling: tiling_lib.Tiling,
) -> tuple[jax.Array, jax.Array]:
  """The weighted values, and the normalisers that the backward pass needs.

  Args:
    arrays: query [B, T, n * C], key and value [B, K, n * C], position key
      [R, n * C], u and v [1, n * C] in float32.
    reach: [B, T], T padded to whole blocks.
    seeds: of dropout, [B, H].
    tiling: sizes.

  Returns:
    Values as `query`, and the logarithm to base 2 of each softmax's
    denominator, [B, n, G, T], likewise.
  """
  query = arrays[0]
  lanes, num_blocks = query.shape[0], query.shape[2] // tiling.block_width
  specs = tiles.block_specs(tiling)
  lse = (lanes, num_blocks, tiling.heads_per_block, tiling.query_len)
  outputs = (
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    jax.ShapeDtypeStruct(lse, jnp.float32),
  )
  return pl.pallas_call(
    functools.partial(_kernel, tiling=tiling),
    name="relative_attention",
    grid=(num_blocks, lanes),
    in_specs=[specs[name] for name in (*_INPUTS, "reach", "seeds")],
    out_specs=[specs["query"], specs["lse"]],
    out_shape=outputs,
    compiler_params=tiles.compiler_params(tiling, query.dtype.itemsize),
    cost_estimate=tiles.cost_estimate(
      tiling,
      (*arrays, *outputs),
      steps=num_blocks * lanes,
      products=(2, 1),
    ),
    interpret=tiling.interpret,
  )(*arrays, reach[:, None], seeds)


def _kernel(query_ref, *refs, tiling):
  *inputs, reach_ref, seeds_ref, output_ref, lse_ref = refs
  key_ref, value_ref, position_ref = inputs[:3]
  tiles.clear_padding(query_ref, tiling.segment_len)
  tiles.clear_padding(key_ref, tiling.context_len)
  tiles.clear_padding(value_ref, tiling.context_len)
  tiles.clear_padding(position_ref, tiling.num_positions)
  for start in tiling.query_starts():
    queries = slice(start, start + tiling.query_block)
    reach = tiles.column(reach_ref[:, queries])
    query = query_ref[queries].astype(jnp.float32)
    output = jnp.zeros_like(query)
    for head, lanes in enumerate(tiles.heads(tiling)):
      drop = tiles.dropout(seeds_ref, head, start, tiling)
      values, lse = _attend(query, lanes, reach, inputs, start, tiling, drop)
      output = jnp.where(lanes, values, output)
      lse_ref[head : head + 1, queries] = tiles.row(lse)
    output_ref[queries] = output.astype(output_ref.dtype)


def _attend(query, lanes, reach, refs, start, tiling, drop):
  """Softmax over the tiles of one head, online."""
  key_ref, value_ref, position_ref, content_bias_ref, position_bias_ref = refs
  scale = tiles.LOG2E / math.sqrt(tiling.head_dim)
  dtype = key_ref.dtype

  def biased(bias_ref):
    return jnp.where(lanes, (query + bias_ref[...]) * scale, 0).astype(dtype)

  content_query = biased(content_bias_ref)
  position_query = biased(position_bias_ref)
  position = tiling.mem_len + start

  def add(carry, tile):
    highest, total, values = carry
    scores = tiles.scores(
      content_query,
      position_query,
      key_ref[tile.keys],
      position_ref[tile.rows],
      interpret=tiling.interpret,
    )
    visible = tiles.visible(reach, tile, position=position)
    scores = jnp.where(visible, scores, tiles.MASKED)
    higher = jnp.maximum(highest, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2(scores - higher)
    shrink = jnp.exp2(highest - higher)
    total = total * shrink + jnp.sum(weights, axis=1, keepdims=True)
    kept = drop(weights, tile).astype(dtype)
    values = values * shrink + tiles.matmul(
      kept, value_ref[tile.keys], tiles.ROWS_BY_COLUMNS
    )
    return higher, total, values

  carry = (
    jnp.full(reach.shape, tiles.MASKED, jnp.float32),
    jnp.zeros(reach.shape, jnp.float32),
    jnp.zeros_like(query),
  )
  for tile in tiling.tiles(start):
    carry = tiles.unless_hidden(
      reach,
      tile,
      functools.partial(add, tile=tile),
      carry,
      position=position,
    )
  highest, total, values = carry
  values /= total * (1 - tiling.dropout_rate)
  return values, highest + jnp.log2(total)
