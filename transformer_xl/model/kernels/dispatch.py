"""Attention as the model calls it: chooses how it is computed.

`relative_attention` has these implementations:

reference  whole matrices of scores; `attention.relative_attention`
head_major the same in the forms that a CPU multiplies fast, in plain XLA
chunked    blocks of queries, in plain XLA
pallas     one fused kernel on TPU; elsewhere interpreted, for tests
auto       pallas on TPU where it can serve, else chunked there; head_major
           on CPU and reference on all other devices

Scores without a term of the distance (`content_attention`) are whole matrices
in XLA, and a ring of cached keys (`ring_attention`) has one form for all.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import ad_checkpoint
from jax.sharding import PartitionSpec

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import attention_dropout
from transformer_xl.model.kernels import chunked
from transformer_xl.model.kernels import device
from transformer_xl.model.kernels import fused
from transformer_xl.model.kernels import head_major
from transformer_xl.model.kernels import ring
from transformer_xl.model.kernels import tiling as tiling_lib

# VMEM that a kernel may use: a core has 64 MiB or more, less a reserve.
_VMEM_BYTES = 48 << 20
_NO_STRIDED_ROTATION = ("TPU v2", "TPU v3", "TPU v4")
# Every block of scores is unrolled code; a million compile in half a minute.
_MAX_SCORES = 4 << 20
_MIN_SEGMENT_LEN = 16  # The kernel computes at least 16 rows.


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  dropout: attention_dropout.Dropout | None,
  implementation: str,
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments and one more.

  Args:
    query: of the segment's T tokens.
    key: of memory and segment, oldest first.
    value: likewise.
    position_key: projected encodings of the distances K-1 down to 0.
    content_bias: u.
    position_bias: v.
    reach: largest visible distance for each query.
    dropout: of the probabilities.
    implementation: one of the above.
  """
  choice = choose(implementation, query, key)
  arrays = (query, key, value, position_key, content_bias, position_bias, reach)
  if choice == "pallas":
    return _fused(arrays, dropout)
  values = IN_XLA[choice](
    query,
    key,
    value,
    position_key,
    content_bias=content_bias,
    position_bias=position_bias,
    reach=reach,
    dropout=dropout,
  )
  return ad_checkpoint.checkpoint_name(values, "attention_output")


IN_XLA: dict[str, Callable[..., jax.Array]] = {
  "reference": attention.relative_attention,
  "head_major": head_major.relative_attention,
  "chunked": chunked.relative_attention,
}


def choose(implementation: str, query: shapes.Queries, key: shapes.Keys) -> str:
  """The implementation; for "auto" the one that suits these arrays."""
  if implementation != "auto":
    return implementation
  kind = device.device_kind()
  if not kind.startswith("TPU"):
    return "head_major" if kind == "cpu" else "reference"
  return "pallas" if serves(query, key) else "chunked"


def content_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  *,
  reach: shapes.Reach,
  dropout: attention_dropout.Dropout | None,
) -> shapes.Queries:
  """`attention.absolute_attention`, with the same arguments."""
  values = attention.absolute_attention(
    query, key, value, reach=reach, dropout=dropout
  )
  return ad_checkpoint.checkpoint_name(values, "attention_output")


def ring_attention(
  query: shapes.RingQueries,
  key: shapes.Ring,
  value: shapes.Ring,
  position_key: ring.RingPositionKeys | None,
  *,
  biases: shapes.BiasPair | None,
  reach: shapes.Reach,
  slot: jax.Array,
) -> shapes.RingQueries:
  """`ring.ring_attention`, with the same arguments; `slot` is a scalar.

  A CPU takes one lane after the other, so that a lane's scores stay in its
  cache, unless lanes are split over several devices.
  """

  def attend(query, key, value, reach):
    return ring.ring_attention(
      query, key, value, position_key, biases=biases, reach=reach, slot=slot
    )

  lanes, heads, segment_len, _ = query.shape

  def attend_lane(inputs):
    lane, query, reach = inputs
    keys, values = (
      jax.lax.dynamic_slice_in_dim(rows, lane * heads, heads)
      for rows in (key, value)
    )
    return attend(query[None], keys, values, reach[None])[0]

  is_split = jax.sharding.get_abstract_mesh().size > 1
  if (
    device.device_kind() != "cpu" or is_split or lanes == 1 or segment_len == 1
  ):
    return attend(query, key, value, reach)
  order = jnp.arange(lanes, dtype=jnp.int32)
  return jax.lax.map(attend_lane, (order, query, reach))


def serves(query: shapes.Queries, key: shapes.Keys) -> bool:
  """Whether the fused kernel serves such shapes, as each device sees them."""
  _, axes, sizes = _parts(query.shape)
  heads = query.shape[2] // math.prod(sizes[name] for name in axes or ())
  tiling = tiling_lib.make_tiling(
    query_len=query.shape[1],
    key_len=key.shape[1],
    num_heads=heads,
    head_dim=query.shape[3],
    interpret=False,
  )
  return (
    not device.device_kind().startswith(_NO_STRIDED_ROTATION)
    and query.shape[1] >= _MIN_SEGMENT_LEN
    and tiling_lib.vmem_bytes(tiling, query.dtype.itemsize) <= _VMEM_BYTES
    and tiling_lib.num_scores(tiling)[0] <= _MAX_SCORES
  )


def _fused(
  arrays: tuple[jax.Array, ...], dropout: attention_dropout.Dropout | None
) -> jax.Array:
  """The kernel on each device's lanes and heads.

  The partitioner cannot look into a kernel, so the split is spelled out. Heads
  are passed side by side, [..., H * Dh]: given four axes, XLA would lay them
  out in another order and copy them for the kernel.
  """
  shape = arrays[0].shape
  interpret = not device.device_kind().startswith("TPU")
  rate = 0.0 if dropout is None else dropout.rate
  seeds = (
    jnp.zeros((shape[0], shape[2]), jnp.int32)
    if dropout is None
    else dropout.seeds
  )

  def attend(query, key, value, position_key, u, v, reach, seeds):
    heads = [
      array.reshape(*array.shape[:-1], -1, shape[-1])
      for array in (query, key, value, position_key, u, v)
    ]
    values = fused.relative_attention(
      *heads[:4],
      content_bias=heads[4],
      position_bias=heads[5],
      reach=reach,
      dropout=attention_dropout.Dropout(rate, seeds),
      interpret=interpret,
    )
    return values.reshape(query.shape)

  flat = [array.reshape(*array.shape[:-2], -1) for array in arrays[:-1]]
  return _split(attend, shape)(*flat, arrays[-1], seeds).reshape(shape)


def _split(attend, shape) -> Callable[..., jax.Array]:
  """`attend` inside `shard_map`, if the ambient mesh is for the partitioner."""
  lanes, heads, sizes = _parts(shape)
  if not sizes:
    return attend
  of_text = PartitionSpec(lanes, None, heads)
  of_heads = PartitionSpec(heads)
  return jax.shard_map(
    attend,
    in_specs=(
      *[of_text] * 3,
      PartitionSpec(None, heads),
      *[of_heads] * 2,
      PartitionSpec(lanes),
      PartitionSpec(lanes, heads),
    ),
    out_specs=of_text,
    # Kernels do not declare which axes their results vary over.
    check_vma=False,
  )


def _parts(
  shape: tuple[int, ...],
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, dict[str, int]]:
  """The mesh axes that split lanes and heads of [B, T, H, Dh], and their sizes.

  There are no sizes if the ambient mesh splits nothing, or not any more.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.size <= 1 or mesh.manual_axes:
    return None, None, {}
  sizes = {name: mesh.shape[name] for name in mesh.axis_names}
  lanes = [name for name in mesh_lib.LANES if name in sizes]
  heads = ["tensor"] if "tensor" in sizes else []
  return (
    mesh_lib.dividing_axes(shape[0], lanes, sizes),
    mesh_lib.dividing_axes(shape[2], heads, sizes),
    sizes,
  )
