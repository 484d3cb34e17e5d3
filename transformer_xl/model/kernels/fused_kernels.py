"""Kernels of fused attention, each for a block of heads in a lane of text.

Shapes: B lanes of text, T queries, K keys, C lanes of a block, R position keys,
n blocks of heads, G heads in a block.
"""

import math
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling as tiling_lib


def forward(
  arrays: dict[str, jax.Array],
  constants: dict[str, jax.Array],
  *,
  tiling: tiling_lib.Tiling,
) -> tuple[jax.Array, jax.Array]:
  """The weighted values, and the normalisers that the backward pass needs.

  The arrays are query [B, T, n * C], key and value [B, K, n * C] and, if there
  are any, position_key [R, n * C], content_bias and position_bias [1, n * C] in
  float32. The constants are reach [B, 1, T], T padded to whole blocks, the
  seeds of dropout [B, H] and perhaps slopes [H] in float32. Values are as the
  query, and the normalisers [B, n, G, T] are logarithms to base 2 of a
  softmax's denominator.
  """
  query = arrays["query"]
  lanes, _, width = query.shape
  blocks = width // tiling.block_width
  lse = (lanes, blocks, tiling.heads_per_block, tiling.query_len)
  found = tiles.call(
    tiles.Kernel(_forward_kernel, "relative_attention", products=(2, 1)),
    tiling,
    inputs=arrays | constants,
    outputs={
      "output": jax.ShapeDtypeStruct(query.shape, query.dtype),
      "lse": jax.ShapeDtypeStruct(lse, jnp.float32),
    },
  )
  return found["output"], found["lse"]


def _forward_kernel(
  refs: types.SimpleNamespace, tiling: tiling_lib.Tiling
) -> None:
  """Writes the weighted values and the normalisers of a block of heads."""
  tiles.clear_padding(refs, tiling)
  for tile in tiling.tiles():
    queries = slice(tile.start, tile.start + tiling.query_block)
    block = _Queries(
      refs.query[queries].astype(jnp.float32),
      tiles.column(refs.reach[:, queries]),
    )
    output = jnp.zeros_like(block.rows)
    for head, head_mask in enumerate(tiles.head_masks(tiling)):
      values, lse = _attend(refs, block, head, head_mask, tile, tiling)
      output = jnp.where(head_mask, values, output)
      refs.lse[head : head + 1, queries] = tiles.row(lse)
    refs.output[queries] = output.astype(refs.output.dtype)


class _Queries(NamedTuple):
  """A block of queries [Bq, C], and how far each of them sees [Bq, 1]."""

  rows: jax.Array
  reach: jax.Array


def _attend(
  refs: types.SimpleNamespace,
  block: _Queries,
  head: int,
  head_mask: jax.Array,
  tile: tiling_lib.Tile,
  tiling: tiling_lib.Tiling,
) -> tuple[jax.Array, jax.Array]:
  """Attention of one head, and the normalisers of its softmax."""
  dtype = refs.key.dtype
  content = tiles.biased(block.rows, refs.content_bias, head_mask, tiling)
  content = content.astype(dtype)
  position = tiles.biased(block.rows, refs.position_bias, head_mask, tiling)
  position = position.astype(dtype)
  scores = tiles.scores(refs, head, content, position, tile, tiling)
  visible = tiles.visible(block.reach, tile, tiling)
  scores = jnp.where(visible, scores, tiles.MASKED)

  highest = jnp.max(scores, axis=1, keepdims=True)
  weights = jnp.exp2(scores - highest)
  total = jnp.sum(weights, axis=1, keepdims=True)
  kept = tiles.kept_weights(refs.seeds, head, tile, tiling)
  weights = tiles.drop(weights, kept).astype(dtype)
  values = tiles.product(weights, refs.value[: tile.num_keys], 1, 0)
  values /= total * (1 - tiling.dropout_rate)
  return values, highest + jnp.log2(total)


def backward(
  arrays: dict[str, jax.Array],
  constants: dict[str, jax.Array],
  output: jax.Array,
  lse: jax.Array,
  gradient: jax.Array,
  *,
  tiling: tiling_lib.Tiling,
) -> dict[str, jax.Array]:
  """Gradients of the arrays, summed over lanes where lanes share an array.

  Args:
    arrays: the arguments of `forward` that have gradients.
    constants: the other arguments of `forward`.
    output: the weighted values that `forward` returned, [B, T, n * C].
    lse: the normalisers that it returned.
    gradient: of the output, [B, T, n * C].
    tiling: how the arrays are cut into blocks.
  """
  results = {"output": output, "lse": lse, "output_gradient": gradient}
  outputs = {
    # Sums over lanes stay in float32 until they are whole.
    f"d_{name}": jax.ShapeDtypeStruct(
      array.shape, array.dtype if array.ndim == 3 else jnp.float32
    )
    for name, array in arrays.items()
  }
  kernel = tiles.Kernel(
    _backward_kernel,
    "relative_attention_gradient",
    products=(5, 3),
    sums=("key_sum", "value_sum"),
  )
  found = tiles.call(
    kernel,
    tiling,
    inputs=arrays | constants | results,
    outputs=outputs,
  )
  return {name: found[f"d_{name}"] for name in arrays}


def _backward_kernel(
  refs: types.SimpleNamespace, tiling: tiling_lib.Tiling
) -> None:
  """Writes the gradients of a block of heads, or adds to their sums."""
  tiles.clear_padding(refs, tiling, refs.output, refs.output_gradient)

  @pl.when(pl.program_id(1) == 0)
  def _start_sums_over_lanes() -> None:
    for ref in refs.d_position_key, refs.d_content_bias, refs.d_position_bias:
      if ref is not None:
        ref[...] = jnp.zeros_like(ref)

  for ref in refs.key_sum, refs.value_sum:
    ref[...] = jnp.zeros_like(ref)
  for tile in tiling.tiles():
    _add_gradients(refs, tile, tiling)
  # The keys' gradient was computed from queries with the factor LOG2E.
  key_gradient = refs.key_sum[...] * (1 / tiles.LOG2E)
  refs.d_key[...] = key_gradient.astype(refs.d_key.dtype)
  refs.d_value[...] = refs.value_sum[...].astype(refs.d_value.dtype)


def _add_gradients(
  refs: types.SimpleNamespace,
  tile: tiling_lib.Tile,
  tiling: tiling_lib.Tiling,
) -> None:
  """Adds the contribution of a block of queries."""
  queries = slice(tile.start, tile.start + tiling.query_block)
  query = refs.query[queries].astype(jnp.float32)
  content_total = jnp.zeros_like(query)
  position_total = jnp.zeros_like(query)
  for head, head_mask in enumerate(tiles.head_masks(tiling)):
    content, position = _head_gradients(
      refs, query, head, head_mask, tile, tiling
    )
    content_total = jnp.where(head_mask, content, content_total)
    if position is not None:
      position = tiles.upside_down(position)
      position_total = jnp.where(head_mask, position, position_total)

  scale = 1 / math.sqrt(tiling.head_dim)
  total = content_total
  if tiling.has_positions:
    total += position_total
  refs.d_query[queries] = (total * scale).astype(refs.d_query.dtype)
  totals = (content_total, position_total)
  biases = (refs.d_content_bias, refs.d_position_bias)
  for ref, values in zip(biases, totals, strict=True):
    if ref is not None:
      ref[...] += scale * jnp.sum(values, axis=0, keepdims=True)


def _head_gradients(
  refs: types.SimpleNamespace,
  query: jax.Array,
  head: int,
  head_mask: jax.Array,
  tile: tiling_lib.Tile,
  tiling: tiling_lib.Tiling,
) -> tuple[jax.Array, jax.Array | None]:
  """Adds to the sums of one head.

  Returns the gradients of q + u and, last query first, of q + v; the latter is
  None without position keys.
  """
  dtype = refs.key.dtype
  queries = slice(tile.start, tile.start + tiling.query_block)
  keys = slice(tile.num_keys)

  # The output's gradient, and its product with the output, of which softmax
  # takes the share of each weight.
  gradient = refs.output_gradient[queries].astype(jnp.float32)
  output = refs.output[queries].astype(jnp.float32)
  weighted = jnp.where(head_mask, output * gradient, 0)
  weighted = jnp.sum(weighted, axis=1, keepdims=True)
  if tiling.dropout_rate:
    gradient = gradient * (1 / (1 - tiling.dropout_rate))
  gradient = jnp.where(head_mask, gradient, 0).astype(dtype)

  # The weights, as in the forward pass.
  content = tiles.biased(query, refs.content_bias, head_mask, tiling)
  content = content.astype(dtype)
  position = tiles.biased(query, refs.position_bias, head_mask, tiling)
  # For position keys' gradients, which have no factor LOG2E.
  flipped = tiles.upside_down(position * (1 / tiles.LOG2E)).astype(dtype)
  position = position.astype(dtype)
  scores = tiles.scores(refs, head, content, position, tile, tiling)
  reach = tiles.column(refs.reach[:, queries])
  visible = tiles.visible(reach, tile, tiling)
  lse = tiles.column(refs.lse[head : head + 1, queries])
  weights = jnp.where(visible, jnp.exp2(scores - lse), 0)
  kept = tiles.kept_weights(refs.seeds, head, tile, tiling)
  dropped = tiles.drop(weights, kept).astype(dtype)

  refs.value_sum[keys] += tiles.product(dropped, gradient, 0, 0)
  d_weights = tiles.product(gradient, refs.value[keys], 1, 1)
  d_scores = weights * (tiles.drop(d_weights, kept) - weighted)
  narrow = d_scores.astype(dtype)
  refs.key_sum[keys] += tiles.product(narrow, content, 0, 0)
  d_content = tiles.product(narrow, refs.key[keys], 1, 0)
  if not tiling.has_positions:
    return d_content, None

  by_window = tiles.to_window_upside_down(d_scores, tile, tiling).astype(dtype)
  d_position_key = tiles.product(by_window, flipped, 0, 0)
  refs.d_position_key[tile.window] += d_position_key
  window = refs.position_key[tile.window]
  return d_content, tiles.product(by_window, window, 1, 0)
