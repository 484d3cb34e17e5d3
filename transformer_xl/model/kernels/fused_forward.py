"""Forward kernel of fused attention: one block of heads in one lane of text.

Shapes: B lanes of text, T queries, K keys, C lanes of a block, R position keys,
n blocks of heads, G heads in a block.
"""

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling as tiling_lib


def forward(
  arrays: tuple[jax.Array, ...],
  reach: shapes.Reach,
  seeds: jax.Array,
  *,
  tiling: tiling_lib.Tiling,
) -> list[jax.Array]:
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
  lanes, _, width = query.shape
  blocks, heads = width // tiling.block_width, tiling.heads_per_block
  lse = (lanes, blocks, heads, tiling.query_len)
  inputs = dict(zip(tiles.ARRAYS, arrays, strict=True))
  return tiles.call(
    *(_kernel, "relative_attention", tiling),
    inputs=inputs | {"reach": reach[:, None], "seeds": seeds},
    outputs={
      "output": jax.ShapeDtypeStruct(query.shape, query.dtype),
      "lse": jax.ShapeDtypeStruct(lse, jnp.float32),
    },
    products=(2, 1),
  )


def _kernel(refs, tiling):
  tiles.clear_padding(refs, tiling)
  for start in tiling.query_starts():
    queries = slice(start, start + tiling.query_block)
    reach = tiles.column(refs.reach[:, queries])
    query = refs.query[queries].astype(jnp.float32)
    output = jnp.zeros_like(query)
    for head, lanes in enumerate(tiles.heads(tiling)):
      drop = tiles.dropout(refs.seeds, head, start, tiling)
      values, lse = _attend(refs, query, lanes, reach, start, tiling, drop)
      output = jnp.where(lanes, values, output)
      refs.lse[head : head + 1, queries] = tiles.row(lse)
    refs.output[queries] = output.astype(refs.output.dtype)


def _attend(refs, query, lanes, reach, start, tiling, drop):
  """Softmax over the tiles of one head, online."""
  dtype = refs.key.dtype
  content, position = (
    tiles.biased(query, bias_ref, lanes, tiling).astype(dtype)
    for bias_ref in (refs.content_bias, refs.position_bias)
  )

  def add(tile, carry):
    highest, total, values = carry
    key, window = refs.key[tile.keys], refs.position_key[tile.rows]
    scores = tiles.scores(
      content, position, key, window, interpret=tiling.interpret
    )
    visible = tiles.visible(reach, tile, start, tiling)
    scores = jnp.where(visible, scores, tiles.MASKED)
    higher = jnp.maximum(highest, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2(scores - higher)
    shrink = jnp.exp2(highest - higher)
    total = total * shrink + jnp.sum(weights, axis=1, keepdims=True)
    kept = drop(weights, tile).astype(dtype)
    values = values * shrink + tiles.matmul(
      kept, refs.value[tile.keys], tiles.ROWS_BY_COLUMNS
    )
    return higher, total, values

  carry = (
    jnp.full(reach.shape, tiles.MASKED, jnp.float32),
    jnp.zeros(reach.shape, jnp.float32),
    jnp.zeros_like(query),
  )
  highest, total, values = tiles.over_tiles(add, carry, reach, start, tiling)
  values /= total * (1 - tiling.dropout_rate)
  return values, highest + jnp.log2(total)
