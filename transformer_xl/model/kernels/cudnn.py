"""Attention by `jax.nn.dot_product_attention`: on an NVIDIA GPU, by cuDNN.

It adds nothing to a score that depends on the distance and drops no weights.
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
    UserError: a score has a term for its distance, weights are dropped, or a
      GPU is given float32.
  """
  is_gpu = device.device_kind().startswith("NVIDIA")
  if inputs.position_key is not None or inputs.slopes is not None:
    _refuse("has no scores by distance; set --config.model.encoding=rope")
  if dropout is not None:
    _refuse("drops no weights; set --config.model.attention_dropout_rate=0")
  if is_gpu and inputs.query.dtype == jnp.float32:
    _refuse("multiplies no float32; set --config.model.dtype=bfloat16")
  visible = attention.visible_keys(inputs.reach, inputs.key.shape[1])
  return jax.nn.dot_product_attention(
    inputs.query,
    inputs.key,
    inputs.value,
    mask=visible[:, None],
    implementation="cudnn" if is_gpu else "xla",
  )


def _refuse(what: str) -> None:
  raise errors.UserError(
    f"model.attention=cudnn {what}, or --config.model.attention=auto."
  )
