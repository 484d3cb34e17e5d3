"""Fused relative attention for TPU, forward and backward, in Pallas.

Lays the heads side by side, and gives the two kernels to autodiff as one
function. Nothing of size segment x context leaves the chip.
"""

import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import fused_kernels
from transformer_xl.model.kernels import tiling as tiling_lib


def relative_attention(
  inputs: attention.Inputs,
  dropout: dropout_lib.AttentionDropout,
  interpret: bool,
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments.

  There is always dropout, its rate possibly 0. `interpret` runs the kernels as
  ordinary JAX, without a TPU.
  """
  query, key, value, position_key, content_bias, position_bias, reach = inputs
  num_heads, head_dim = query.shape[2:]
  tiling = tiling_lib.make_tiling(
    query_len=query.shape[1],
    key_len=key.shape[1],
    num_heads=num_heads,
    head_dim=head_dim,
    dropout_rate=dropout.rate,
    interpret=interpret,
  )
  padding = tiling.query_len - query.shape[1]

  def pack(array):
    """[..., H, Dh] to [..., H * padded Dh]."""
    lanes = tiling.head_width - head_dim
    padded = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, lanes)])
    return padded.reshape(*array.shape[:-2], num_heads * tiling.head_width)

  # Keys beyond the farthest distance are never visible.
  before = ((padding, 0), (0, 0))
  arrays = (
    *(pack(query), pack(key), pack(value)),
    jnp.pad(pack(position_key), before)[: tiling.num_positions],
    pack(content_bias[None].astype(jnp.float32)),
    pack(position_bias[None].astype(jnp.float32)),
  )
  reach = jnp.pad(reach, ((0, 0), (0, padding))).astype(jnp.int32)
  output = _attend(tiling, arrays, reach, dropout.seeds)
  heads = output.reshape(*output.shape[:-1], num_heads, tiling.head_width)
  return heads[..., :head_dim]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiling, arrays, reach, seeds):
  return _attend_forward(tiling, arrays, reach, seeds)[0]


def _attend_forward(tiling, arrays, reach, seeds):
  # Named so that a rematerialisation policy can avoid a second forward pass.
  output, lse = (
    ad_checkpoint.checkpoint_name(array, "attention_output")
    for array in fused_kernels.forward(arrays, reach, seeds, tiling=tiling)
  )
  return output, (arrays, reach, seeds, output, lse)


def _attend_backward(tiling, residuals, gradient):
  inputs = (*residuals, gradient)
  gradients = fused_kernels.backward(*inputs, tiling=tiling)
  casts = zip(gradients, residuals[0], strict=True)
  return tuple(to.astype(array.dtype) for to, array in casts), None, None


_attend.defvjp(_attend_forward, _attend_backward)
