"""Fused attention over a ring for TPU, in Pallas: `xla_ring.ring_attention`.

The slot after the newest key has the oldest one. So scores by distance become
scores by slot when each row is rotated, which the hardware does; and nothing of
size segment x ring leaves the chip.

Shapes: B lanes, T queries, R slots, H heads, Dh head width; `xla_ring` says
which head of the ring each attends to.
"""

import math
import types

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from transformer_xl import shapes
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling
from transformer_xl.model.kernels import xla_ring

_BLOCK = 128  # Queries that are attended from at a time.


def serves(
  query: shapes.RingQueries | jax.ShapeDtypeStruct,
  key: shapes.Ring | jax.ShapeDtypeStruct,
) -> bool:
  """Whether the sizes fill the hardware's tiles and fit into its memory."""
  *_, segment_len, head_dim = query.shape
  slots = key.shape[-1]
  rows = min(segment_len, _BLOCK)
  return (
    segment_len % rows == rows % tiling.ROWS == head_dim % tiling.ROWS == 0
    and slots % tiling.LANES == 0
    and _vmem_bytes(rows, head_dim, slots, key.dtype.itemsize)
    <= tiling.MOST_VMEM_BYTES
  )


def ring_attention(
  inputs: xla_ring.Inputs, *, interpret: bool
) -> shapes.RingQueries:
  """Attention of a segment to a ring whose sizes the kernel serves.

  `interpret` runs the kernel as ordinary JAX, without a TPU.
  """
  query = inputs.query
  lanes, heads, segment_len, head_dim = query.shape
  slots = inputs.key.shape[-1]
  rows = min(segment_len, _BLOCK)
  arrays = {
    "query": query,
    "key": inputs.key,
    "value": inputs.value,
    "reach": inputs.reach[..., None],
  }
  terms = inputs.distance
  if inputs.position_key is not None:
    arrays["position_key"] = inputs.position_key.once
  if terms.biases is not None:
    for name, bias in zip(tiles.BIASES, terms.biases, strict=True):
      arrays[name] = bias[:, None].astype(jnp.float32)
  if terms.slopes is not None:
    arrays["slopes"] = terms.slopes
  ring_heads = inputs.key.shape[0] // lanes
  num_shares = heads // ring_heads
  blocks = _block_specs(rows, ring_heads, num_shares, head_dim, slots)

  def run(slot_ref: jax.Ref, *refs: jax.Ref) -> None:
    by_name = dict.fromkeys(blocks) | dict(
      zip((*arrays, "output"), refs, strict=True)
    )
    _kernel(slot_ref[0], types.SimpleNamespace(**by_name), interpret)

  scores = lanes * heads * segment_len * slots
  products = 2 + (inputs.position_key is not None)
  vmem = _vmem_bytes(rows, head_dim, slots, inputs.key.dtype.itemsize)
  return pl.pallas_call(
    run,
    name="ring_attention",
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      # The keys of distances stay while the lanes of a head follow each other.
      grid=(heads, lanes, segment_len // rows),
      in_specs=[blocks[name] for name in arrays],
      out_specs=blocks["query"],
    ),
    out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary"),
      vmem_limit_bytes=tiling.vmem_limit_bytes(vmem),
    ),
    cost_estimate=pl.CostEstimate(  # For XLA's scheduler.
      flops=2 * products * head_dim * scores,
      transcendentals=scores,
      bytes_accessed=sum(array.nbytes for array in arrays.values()),
    ),
    interpret=interpret,
  )(inputs.slot[None], *arrays.values())


def _vmem_bytes(rows: int, head_dim: int, slots: int, itemsize: int) -> int:
  """Estimate of the VMEM that the kernel uses.

  It holds keys, values and keys of distances twice, and four arrays of scores.
  """
  return slots * (6 * head_dim * itemsize + 4 * rows * 4)


def _block_specs(
  rows: int, ring_heads: int, num_shares: int, head_dim: int, slots: int
) -> dict[str, pl.BlockSpec]:
  """Blocks of the arrays for a grid of [heads, lanes, blocks of queries].

  `num_shares` heads of queries attend to each of the ring's.
  """

  def of_head(*shape: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, *shape), lambda h, b, i, slot: (h, 0, 0))

  # Not `//`, which looks at signs: to lower that for a TPU, JAX needs one.
  per_slot = pl.BlockSpec(
    (None, head_dim, slots),
    lambda h, b, i, slot: (b * ring_heads + jax.lax.div(h, num_shares), 0, 0),
  )
  return {
    "query": pl.BlockSpec(
      (None, None, rows, head_dim), lambda h, b, i, slot: (b, h, i, 0)
    ),
    "key": per_slot,
    "value": per_slot,
    "reach": pl.BlockSpec((None, rows, 1), lambda h, b, i, slot: (b, i, 0)),
    "position_key": of_head(head_dim, slots),
    "content_bias": of_head(1, head_dim),
    "position_bias": of_head(1, head_dim),
    "slopes": pl.BlockSpec(memory_space=pltpu.SMEM),
  }


def _kernel(
  slot: jax.Array, refs: types.SimpleNamespace, interpret: bool
) -> None:
  """Attention of a block of one head's queries in one lane."""
  dtype = refs.key.dtype
  query = refs.query[...].astype(jnp.float32)
  rows, head_dim = query.shape
  slots = refs.key.shape[1]
  scale = tiles.LOG2E / math.sqrt(head_dim)

  def scaled(bias: jax.Ref | None) -> jax.Array:
    biased = query if bias is None else query + bias[...]
    return (biased * scale).astype(dtype)

  scores = tiles.product(scaled(refs.content_bias), refs.key[...], 1, 0)
  # Column j is of the distance R - 1 - j, so that the mask is simple here. A
  # later query's key counts as the farthest, which is never visible.
  distance = slots - 1 - jax.lax.broadcasted_iota(jnp.int32, (1, slots), 1)
  by_distance = jnp.zeros((rows, slots), jnp.float32)
  if refs.position_key is not None:
    position = scaled(refs.position_bias)
    by_distance = tiles.product(position, refs.position_key[...], 1, 0)
  if refs.slopes is not None:
    slope = refs.slopes[pl.program_id(0)] * tiles.LOG2E
    by_distance -= slope * distance.astype(jnp.float32)
  visible = distance <= refs.reach[...]
  by_distance = jnp.where(visible, by_distance, tiles.MASKED)
  # Row i has its distance 0 in slot `first` + i.
  first = slot + pl.program_id(2) * rows
  scores += tiles.roll_rows(by_distance, first + 1, interpret=interpret)
  weights = jnp.exp2(scores - jnp.max(scores, axis=1, keepdims=True))
  total = jnp.sum(weights, axis=1, keepdims=True)
  values = tiles.product(weights.astype(dtype), refs.value[...], 1, 1)
  refs.output[...] = (values / total).astype(refs.output.dtype)
