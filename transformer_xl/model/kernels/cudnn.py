"""Attention by `jax.nn.dot_product_attention`: on an NVIDIA GPU, by cuDNN.

It has no scores by distance and drops no weights; `config.attention_rules`
refuses both.
"""

import jax
import jax.numpy as jnp

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import device


def relative_attention(
  inputs: attention.Inputs, dropout: dropout_lib.AttentionDropout | None
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments.

  Raises:
    UserError: cuDNN cannot serve the type, the width of a head or the lengths.
  """
  del dropout  # None.
  is_gpu = device.device_kind().startswith("NVIDIA")
  if is_gpu:
    _require_served(inputs)
  visible = attention.visible_keys(inputs.reach, inputs.key.shape[1])
  return jax.nn.dot_product_attention(
    inputs.query,
    inputs.key,
    inputs.value,
    mask=visible[:, None],
    implementation="cudnn" if is_gpu else "xla",
  )


def _require_served(inputs: attention.Inputs) -> None:
  """Raises a UserError for what JAX 0.10.2 refuses to give to cuDNN."""
  head_dim, lengths = inputs.query.shape[3], (inputs.query, inputs.key)
  if inputs.query.dtype == jnp.float32:
    _refuse("multiplies no float32; set --config.model.dtype=bfloat16")
  if head_dim % 8 or head_dim > 128:
    _refuse(
      f"needs heads of a multiple of 8 channels up to 128: there are {head_dim}"
      "; change --config.model.head_dim"
    )
  if any(array.shape[1] % 2 for array in lengths):
    _refuse(
      "needs segments and memories of even lengths; change them, such as "
      "--config.train.segment_len"
    )


def _refuse(what: str) -> None:
  raise errors.UserError(
    f"model.attention=cudnn {what}, or --config.model.attention=auto."
  )
