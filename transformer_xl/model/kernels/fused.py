"""Fused relative attention for TPU, forward and backward, in Pallas.

Lays the heads side by side, and gives the two kernels to autodiff as one
function. Nothing of size segment x context leaves the chip.
"""

import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from transformer_xl import shapes
from transformer_xl.model import attention_dropout
from transformer_xl.model.kernels import fused_backward
from transformer_xl.model.kernels import fused_forward
from transformer_xl.model.kernels import tiling as tiling_lib


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  dropout: attention_dropout.Dropout,
  interpret: bool,
) -> shapes.Queries:
  """`attention.relative_attention`, for any lengths.

  Args:
    query: of the segment's T tokens.
    key: of memory and segment, oldest first.
    value: likewise.
    position_key: projected encodings of the distances K-1 down to 0.
    content_bias: u.
    position_bias: v.
    reach: largest visible distance for each query.
    dropout: of the probabilities, its rate possibly 0.
    interpret: run as ordinary JAX, without a TPU.
  """
  query_len, num_heads, head_dim = query.shape[1:]
  tiling = make_tiling(query, key, interpret=interpret)
  tiling = tiling._replace(dropout_rate=dropout.rate)

  def pack(array):
    """[..., H, Dh] to [..., H * padded Dh]."""
    lanes = tiling.head_width - head_dim
    padded = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, lanes)])
    return padded.reshape(*array.shape[:-2], num_heads * tiling.head_width)

  # Keys beyond the farthest distance are never visible.
  offset = ((tiling.position_offset, 0), (0, 0))
  arrays = (
    pack(query),
    pack(key),
    pack(value),
    jnp.pad(pack(position_key), offset)[: tiling.num_positions],
    pack(content_bias[None].astype(jnp.float32)),
    pack(position_bias[None].astype(jnp.float32)),
  )
  reach = jnp.pad(reach, ((0, 0), (0, tiling.query_len - query_len)))
  output = _attend(tiling, arrays, reach.astype(jnp.int32), dropout.seeds)
  heads = output.reshape(*output.shape[:-1], num_heads, tiling.head_width)
  return heads[..., :head_dim]


def make_tiling(
  query: jax.Array, key: jax.Array, *, interpret: bool
) -> tiling_lib.Tiling:
  """The tiling for [B, T, H, Dh] queries and [B, K, H, Dh] keys."""
  return tiling_lib.make_tiling(
    query_len=query.shape[1],
    key_len=key.shape[1],
    num_heads=query.shape[2],
    head_dim=query.shape[3],
    interpret=interpret,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiling, arrays, reach, seeds):
  return _attend_forward(tiling, arrays, reach, seeds)[0]


def _attend_forward(tiling, arrays, reach, seeds):
  output, lse = fused_forward.forward(arrays, reach, seeds, tiling=tiling)
  # Named so that a rematerialisation policy can avoid a second forward pass.
  output = ad_checkpoint.checkpoint_name(output, "attention_output")
  lse = ad_checkpoint.checkpoint_name(lse, "attention_output")
  return output, (arrays, reach, seeds, output, lse)


def _attend_backward(tiling, residuals, gradient):
  arrays, reach, seeds, output, lse = residuals
  gradients = fused_backward.backward(
    arrays, reach, seeds, output, lse, gradient, tiling=tiling
  )
  casts = zip(gradients, arrays, strict=True)
  return tuple(to.astype(array.dtype) for to, array in casts), None, None


_attend.defvjp(_attend_forward, _attend_backward)
