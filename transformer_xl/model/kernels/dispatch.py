"""Attention as the model calls it: chooses how it is computed.

`relative_attention` has these implementations:

reference  whole matrices of scores; `attention.relative_attention`
head_major the same in the forms that a CPU multiplies fast, in plain XLA
chunked    blocks of queries, in plain XLA
pallas     one fused kernel on TPU; elsewhere interpreted, for tests
cudnn      JAX's own on NVIDIA GPUs, for some encodings, without dropout
auto       pallas on TPU where it can serve, else chunked there; head_major
           on CPU and reference on all other devices

Each but cudnn serves every encoding. A ring of cached keys (`ring_attention`)
has a kernel of its own on TPU, and one form in XLA.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import P
from jax import ad_checkpoint

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import cudnn
from transformer_xl.model.kernels import device
from transformer_xl.model.kernels import fused
from transformer_xl.model.kernels import fused_ring
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
  inputs: attention.Inputs,
  dropout: dropout_lib.AttentionDropout | None,
  implementation: str,
) -> shapes.Queries:
  """`attention.relative_attention`, computed in one of the ways above."""
  choice = choose(implementation, inputs)
  if choice == "pallas":
    with jax.named_scope("fused_attention"):
      return _fused(inputs, dropout)
  values = IN_XLA[choice](inputs, dropout)
  return ad_checkpoint.checkpoint_name(values, "attention_output")


IN_XLA: dict[str, Callable[..., jax.Array]] = {
  "reference": lambda inputs, dropout: attention.relative_attention(
    **inputs._asdict(), dropout=dropout
  ),
  "head_major": head_major.relative_attention,
  "chunked": attention.chunked_attention,
  "cudnn": cudnn.relative_attention,
}


def choose(implementation: str, inputs: attention.Inputs) -> str:
  """The implementation; for "auto" the one that suits these arrays."""
  if implementation != "auto":
    return implementation
  kind = device.device_kind()
  if not kind.startswith("TPU"):
    return "head_major" if kind == "cpu" else "reference"
  query, is_old = inputs.query, kind.startswith(_NO_STRIDED_ROTATION)
  if is_old or query.shape[1] < _MIN_SEGMENT_LEN:
    return "chunked"
  _, axes, sizes = _split_axes(query.shape)
  tiling = tiling_lib.make_tiling(
    query_len=query.shape[1],
    key_len=inputs.key.shape[1],
    num_heads=query.shape[2] // math.prod(sizes[name] for name in axes or ()),
    head_dim=query.shape[3],
    has_positions=inputs.position_key is not None,
  )
  bytes_needed = tiling_lib.vmem_bytes(tiling, query.dtype.itemsize)
  num_scores, _ = tiling_lib.num_scores(tiling)
  fits = bytes_needed <= _VMEM_BYTES and num_scores <= _MAX_SCORES
  return "pallas" if fits else "chunked"


def ring_attention(
  query: shapes.RingQueries,
  key: shapes.Ring,
  value: shapes.Ring,
  position_key: ring.RingPositionKeys | None,
  *,
  reach: shapes.Reach,
  implementation: str,
  **options: Any,
) -> shapes.RingQueries:
  """`ring.ring_attention`, with the same arguments, in one of three ways.

  "pallas" is the kernel of `fused_ring` for sizes that it serves, and "auto"
  takes it on TPU. Otherwise a device takes one lane after the other, so that a
  lane's scores stay in the cache of a CPU, or in the vector memory of a TPU.
  """
  lanes, _, segment_len, _ = query.shape
  by_lane, _, sizes = _split_axes(query.shape)
  own = lanes // math.prod(sizes[name] for name in by_lane or ())
  kind = device.device_kind()
  is_tpu = kind.startswith("TPU")
  if sizes.get("tensor", 1) > 1:
    # Heads are split as well, so that lanes do not lie together.
    attend = ring.ring_attention
    by_lane, sizes = None, {}
  elif fuses_ring(implementation, kind, query, key):
    attend = functools.partial(fused_ring.ring_attention, interpret=not is_tpu)
  elif own > 1 and segment_len > 1 and (kind == "cpu" or is_tpu):
    attend = _lane_by_lane
  else:
    attend = ring.ring_attention
    by_lane, sizes = None, {}

  def attend_all(query, key, value, reach, position_key, options):
    return attend(query, key, value, position_key, reach=reach, **options)

  if sizes:
    rows = P(by_lane)
    attend_all = jax.shard_map(
      attend_all,
      in_specs=(rows, rows, rows, rows, P(), P()),
      out_specs=rows,
      # Kernels do not declare which axes their results vary over.
      check_vma=False,
    )
  return attend_all(query, key, value, reach, position_key, options)


def fuses_ring(
  implementation: str,
  device_kind: str,
  query: shapes.RingQueries | jax.ShapeDtypeStruct,
  key: shapes.Ring | jax.ShapeDtypeStruct,
) -> bool:
  """Whether such a device attends to such a ring in one kernel."""
  is_able = device_kind.startswith("TPU") and not device_kind.startswith(
    _NO_STRIDED_ROTATION
  )
  takes = implementation == "pallas" or (implementation == "auto" and is_able)
  return takes and fused_ring.serves(query, key)


def _lane_by_lane(query, key, value, position_key, *, reach, **options):
  """`ring.ring_attention`, a lane at a time."""
  heads = query.shape[1]

  def attend_lane(inputs):
    lane, query, reach = inputs
    keys, values = (
      jax.lax.dynamic_slice_in_dim(rows, lane * heads, heads)
      for rows in (key, value)
    )
    one = query[None], keys, values, position_key
    return ring.ring_attention(*one, reach=reach[None], **options)[0]

  order = jnp.arange(query.shape[0], dtype=jnp.int32)
  return jax.lax.map(attend_lane, (order, query, reach))


def _fused(inputs, dropout) -> jax.Array:
  """The kernel on each device's lanes and heads.

  The partitioner cannot look into a kernel, so the split is spelled out. Heads
  are passed side by side, [..., H * Dh]: given four axes, XLA would lay them
  out in another order and copy them for the kernel.
  """
  interpret = not device.device_kind().startswith("TPU")
  lanes, _, heads, head_dim = inputs.query.shape
  if dropout is None:
    seeds = jnp.zeros((lanes, heads), jnp.int32)
    dropout = dropout_lib.AttentionDropout(0.0, seeds)

  def attend(flat, seeds):
    values = fused.relative_attention(
      _map_heads(lambda x: x.reshape(*x.shape[:-1], -1, head_dim), flat),
      dropout._replace(seeds=seeds),
      interpret,
    )
    return values.reshape(flat.query.shape)

  by_lane, by_head, sizes = _split_axes(inputs.query.shape)
  if sizes:
    rows, per_head = P(by_lane, None, by_head), P(by_head)
    specs: dict[str, Any] = {
      **dict.fromkeys(("query", "key", "value"), rows),
      "reach": P(by_lane),
      "position_key": P(None, by_head),
      **dict.fromkeys(("content_bias", "position_bias", "slopes"), per_head),
    }
    attend = jax.shard_map(
      attend,
      in_specs=(attention.Inputs(**specs), P(by_lane, by_head)),
      out_specs=rows,
      # Kernels do not declare which axes their results vary over.
      check_vma=False,
    )
  flat = _map_heads(lambda x: x.reshape(*x.shape[:-2], -1), inputs)
  return attend(flat, dropout.seeds).reshape(inputs.query.shape)


def _map_heads(function, inputs: attention.Inputs) -> attention.Inputs:
  """Applies a function to all arrays with heads and their channels."""
  arrays = inputs._asdict()
  for name in ("reach", "slopes"):
    del arrays[name]
  return inputs._replace(**jax.tree.map(function, arrays))


def _split_axes(shape: tuple[int, ...]):
  """The mesh axes that split lanes and heads of [B, T, H, Dh], and their sizes.

  There are no sizes if the ambient mesh splits nothing, or not any more.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.size <= 1 or mesh.manual_axes:
    return None, None, {}
  return (
    mesh_lib.dividing_axes(shape[0], mesh_lib.LANES, mesh.shape),
    mesh_lib.dividing_axes(shape[2], ("tensor",), mesh.shape),
    mesh.shape,
  )
