"""Attention as the model calls it: chooses how it is computed.

xla     plain XLA, on every device: `attention` for segments, `ring` for a ring
pallas  fused kernels for TPU, `fused` and `fused_ring`; elsewhere interpreted,
        for tests
auto    pallas on a TPU where it can serve, else xla

Both serve every encoding and drop the same weights. The kernels are imported
where they are called, since Pallas takes long to import and few devices use it.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
from transformer_xl.model.kernels import tiling as tiling_lib
from transformer_xl.model.kernels import xla_attention
from transformer_xl.model.kernels import xla_ring

_NO_STRIDED_ROTATION = ("TPU v2", "TPU v3", "TPU v4")
# Every block of scores is unrolled code; a million compile in half a minute.
_MAX_SCORES = 4 << 20
_MIN_SEGMENT_LEN = 16  # The kernel computes at least 16 rows.


def relative_attention(
  factors: scores.ScoreFactors,
  value: shapes.Keys,
  *,
  dropout: dropout_lib.AttentionDropout | None,
  implementation: str,
) -> shapes.Queries:
  """Attention of a segment to memory and to itself, as `choose` decides.

  Args:
    factors: what the scores are computed from.
    value: of memory and segment, oldest first.
    dropout: of the attention weights, if there is any.
    implementation: one of those above.
  """
  terms = factors.distance.for_queries(factors.query.dtype)
  factors = factors._replace(distance=terms)
  if choose(implementation, factors) == "pallas":
    with jax.named_scope("fused_attention"):
      return _fused(factors, value, dropout)
  values = xla_attention.relative_attention(factors, value, dropout)
  return ad_checkpoint.checkpoint_name(values, "attention_output")


def choose(implementation: str, factors: scores.ScoreFactors) -> str:
  """The implementation; for "auto" the one that suits these arrays.

  XLA computes what the kernels cannot, whatever is asked for.
  """
  if not factors.distance.fits_kernels:
    return "xla"
  if implementation != "auto":
    return implementation
  query = factors.query
  if not has_kernels(hardware.device_kind()):
    return "xla"
  if query.shape[1] < _MIN_SEGMENT_LEN:
    return "xla"

  split = _split(lanes=query.shape[0], heads=query.shape[2])
  tiling = tiling_lib.make_tiling(
    query_len=query.shape[1],
    key_len=factors.key.shape[1],
    num_heads=query.shape[2] // split.num_head_shards,
    head_dim=query.shape[3],
    has_positions=factors.distance.keys is not None,
  )
  bytes_needed = tiling_lib.vmem_bytes(tiling, query.dtype.itemsize)
  num_scores, _ = tiling_lib.num_scores(tiling)
  is_small = bytes_needed <= tiling_lib.MOST_VMEM_BYTES
  fits = is_small and num_scores <= _MAX_SCORES
  return "pallas" if fits else "xla"


def _fused(
  factors: scores.ScoreFactors,
  value: shapes.Keys,
  dropout: dropout_lib.AttentionDropout | None,
) -> shapes.Queries:
  """Attention by the fused kernel, on each device's lanes and heads.

  The partitioner cannot look into a kernel, so the split is spelled out. Heads
  are passed side by side, [..., H * Dh]: given four axes, XLA would lay them
  out in another order and copy them for the kernel.
  """
  from transformer_xl.model.kernels import fused

  interpret = not hardware.device_kind().startswith("TPU")
  lanes, _, heads, head_dim = factors.query.shape
  if dropout is None:
    seeds = jnp.zeros((lanes, heads), jnp.int32)
    dropout = dropout_lib.AttentionDropout(0.0, seeds)
  rate = dropout.rate

  def split_heads(rows: jax.Array) -> jax.Array:
    return rows.reshape(*rows.shape[:-1], -1, head_dim)

  def join_heads(rows: jax.Array) -> jax.Array:
    return rows.reshape(*rows.shape[:-2], -1)

  def attend(
    flat: scores.ScoreFactors, flat_value: jax.Array, seeds: jax.Array
  ) -> jax.Array:
    values = fused.relative_attention(
      _map_heads(split_heads, flat),
      split_heads(flat_value),
      dropout_lib.AttentionDropout(rate, seeds),
      interpret,
    )
    return values.reshape(flat.query.shape)

  split = _split(lanes=lanes, heads=heads)
  if split.is_split:
    rows = mesh_lib.spec(split.lanes, None, split.heads)
    per_head = mesh_lib.spec(split.heads)
    terms = scores.DistanceTerms(
      keys=mesh_lib.spec(None, split.heads), biases=per_head, slopes=per_head
    )
    specs = scores.ScoreFactors(
      query=rows, key=rows, reach=mesh_lib.spec(split.lanes), distance=terms
    )
    attend = jax.shard_map(
      attend,
      in_specs=(specs, rows, mesh_lib.spec(split.lanes, split.heads)),
      out_specs=rows,
      # Kernels do not declare which axes their results vary over.
      check_vma=False,
    )
  flat = _map_heads(join_heads, factors)
  values = attend(flat, join_heads(value), dropout.seeds)
  return values.reshape(factors.query.shape)


def _map_heads(
  function: Callable[[jax.Array], jax.Array], factors: scores.ScoreFactors
) -> scores.ScoreFactors:
  """Applies a function to all arrays with heads and their channels."""
  terms = factors.distance
  keys, biases = jax.tree.map(function, (terms.keys, terms.biases))
  return factors._replace(
    query=function(factors.query),
    key=function(factors.key),
    distance=terms._replace(keys=keys, biases=biases),
  )


def ring_attention(
  inputs: xla_ring.Inputs, implementation: str
) -> shapes.RingQueries:
  """Attention of a segment to a ring of cached keys and values."""
  terms = inputs.distance.for_queries(inputs.query.dtype)
  inputs = inputs._replace(distance=terms)
  query = inputs.query
  kind = hardware.device_kind()
  lanes, heads, segment_len, _ = query.shape
  split = _split(lanes=lanes, heads=heads)
  attend: Callable[[xla_ring.Inputs], jax.Array]
  if split.num_tensor > 1:
    # Lanes and heads of a ring are one axis, so that a device which has some of
    # the heads does not have a lane's heads together.
    return xla_ring.ring_attention(inputs)
  if terms.fits_kernels and fuses_ring(implementation, kind, query, inputs.key):
    from transformer_xl.model.kernels import fused_ring

    attend = functools.partial(
      fused_ring.ring_attention, interpret=not kind.startswith("TPU")
    )
  elif xla_ring.pays_in_turn(lanes // split.num_lane_shards, segment_len):
    attend = xla_ring.attend_in_turn
  else:
    return xla_ring.ring_attention(inputs)

  if split.is_split:
    rows = mesh_lib.spec(split.lanes)
    whole = mesh_lib.spec()
    specs = xla_ring.Inputs(
      query=rows,
      key=rows,
      value=rows,
      reach=rows,
      slot=whole,
      position_key=whole,
      distance=whole,
    )
    attend = jax.shard_map(
      attend,
      in_specs=(specs,),
      out_specs=rows,
      # Kernels do not declare which axes their results vary over.
      check_vma=False,
    )
  return attend(inputs)


def fuses_ring(
  implementation: str,
  device_kind: str,
  query: shapes.RingQueries | jax.ShapeDtypeStruct,
  key: shapes.Ring | jax.ShapeDtypeStruct,
) -> bool:
  """Whether a device of this kind attends to this ring in one kernel."""
  if implementation == "auto":
    implementation = "pallas" if has_kernels(device_kind) else "xla"
  if implementation != "pallas":
    return False
  from transformer_xl.model.kernels import fused_ring

  return fused_ring.serves(query, key)


def has_kernels(device_kind: str) -> bool:
  """Whether a device is a TPU that can run the kernels."""
  is_old = device_kind.startswith(_NO_STRIDED_ROTATION)
  return device_kind.startswith("TPU") and not is_old


class _Split(NamedTuple):
  """How the ambient mesh splits lanes and heads.

  Attributes:
    is_split: whether there is a mesh of several devices.
    lanes: axes of the mesh that split lanes.
    heads: axes of the mesh that split heads.
    num_lane_shards: the number of parts of the lanes.
    num_head_shards: the number of parts of the heads.
    num_tensor: devices on the axis "tensor", whether they divide the heads or
      not.
  """

  is_split: bool = False
  lanes: tuple[str, ...] | None = None
  heads: tuple[str, ...] | None = None
  num_lane_shards: int = 1
  num_head_shards: int = 1
  num_tensor: int = 1


def _split(*, lanes: int, heads: int) -> _Split:
  """How the mesh splits these numbers of lanes and heads.

  Inside `shard_map` nothing is split any further.
  """
  mesh = mesh_lib.current()
  if mesh.size <= 1 or mesh.manual_axes:
    return _Split()
  by_head = mesh_lib.dividing_axes(heads, ("tensor",), mesh.shape)
  return _Split(
    is_split=True,
    lanes=mesh_lib.lane_axes(lanes),
    heads=by_head,
    num_lane_shards=mesh_lib.lane_groups(lanes),
    num_head_shards=math.prod(mesh.shape[name] for name in by_head or ()),
    num_tensor=mesh.shape.get("tensor", 1),
  )
