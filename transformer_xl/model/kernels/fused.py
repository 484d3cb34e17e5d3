"""Fused attention for TPU, forward and backward, in Pallas.

Lays the heads side by side, and gives the two kernels to autodiff as one
function. Nothing of size segment x context leaves the chip.
"""

import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from transformer_xl import shapes
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
from transformer_xl.model.kernels import fused_kernels
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling as tiling_lib

Arrays = dict[str, jax.Array]  # By name, as `fused_kernels.forward` has them.
# The arrays, the constants, the output and the softmax's normalisers.
Residuals = tuple[Arrays, Arrays, jax.Array, jax.Array]


def relative_attention(
  factors: scores.ScoreFactors,
  value: shapes.Keys,
  dropout: dropout_lib.AttentionDropout,
  interpret: bool,
) -> shapes.Queries:
  """Attention of a segment to memory and to itself, by the fused kernels.

  Args:
    factors: what the scores are computed from.
    value: of memory and segment, oldest first.
    dropout: of the attention weights; its rate may be 0.
    interpret: run the kernels as ordinary JAX, without a TPU.
  """
  _, segment_len, num_heads, head_dim = factors.query.shape
  terms = factors.distance
  tiling = tiling_lib.make_tiling(
    query_len=segment_len,
    key_len=factors.key.shape[1],
    num_heads=num_heads,
    head_dim=head_dim,
    has_positions=terms.keys is not None,
  )
  tiling = tiling._replace(dropout_rate=dropout.rate, interpret=interpret)
  padding = tiling.query_len - segment_len

  def pack(array: jax.Array) -> jax.Array:
    """Pads the heads and joins them: [..., H, Dh] to [..., H * padded Dh]."""
    num_zeros = tiling.head_width - head_dim
    padded = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, num_zeros)])
    return padded.reshape(*array.shape[:-2], num_heads * tiling.head_width)

  arrays = {
    "query": pack(factors.query),
    "key": pack(factors.key),
    "value": pack(value),
  }
  if terms.keys is not None:
    # Keys beyond the farthest distance are never visible.
    rows = jnp.pad(pack(terms.keys), ((padding, 0), (0, 0)))
    arrays["position_key"] = rows[: tiling.num_positions]
  if terms.biases is not None:
    for name, bias in zip(tiles.BIASES, terms.biases, strict=True):
      arrays[name] = pack(bias[None].astype(jnp.float32))
  reach = jnp.pad(factors.reach, ((0, 0), (0, padding))).astype(jnp.int32)
  constants = {"reach": reach[:, None], "seeds": dropout.seeds}
  if terms.slopes is not None:
    constants["slopes"] = terms.slopes
  output = _attend(tiling, arrays, constants)
  heads = output.reshape(*output.shape[:-1], num_heads, tiling.head_width)
  return heads[..., :head_dim]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
  tiling: tiling_lib.Tiling, arrays: Arrays, constants: Arrays
) -> jax.Array:
  return _attend_forward(tiling, arrays, constants)[0]


def _attend_forward(
  tiling: tiling_lib.Tiling, arrays: Arrays, constants: Arrays
) -> tuple[jax.Array, Residuals]:
  # Named so that a rematerialisation policy can avoid a second forward pass.
  output, lse = (
    ad_checkpoint.checkpoint_name(array, "attention_output")
    for array in fused_kernels.forward(arrays, constants, tiling=tiling)
  )
  return output, (arrays, constants, output, lse)


def _attend_backward(
  tiling: tiling_lib.Tiling, residuals: Residuals, gradient: jax.Array
) -> tuple[Arrays, None]:
  arrays, constants, output, lse = residuals
  found = fused_kernels.backward(
    arrays, constants, output, lse, gradient, tiling=tiling
  )
  gradients = {name: found[name].astype(arrays[name].dtype) for name in arrays}
  return gradients, None


_attend.defvjp(_attend_forward, _attend_backward)
