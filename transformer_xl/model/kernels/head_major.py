"""Attention in plain XLA, in the forms that a CPU multiplies fast.

Heads come first, so that the position scores of all lanes are one matrix
product for each head. Queries are scaled before the products, not the larger
scores after them. Products and their gradients are those of `dense`.
"""

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import dense


def relative_attention(
  inputs: attention.Inputs, dropout: dropout_lib.AttentionDropout | None
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments."""
  query, key, value = inputs.query, inputs.key, inputs.value
  content_query = _scaled(query, inputs.content_bias)
  with jax.named_scope("content_scores"):
    scores = dense.product(content_query, key.transpose(2, 0, 3, 1))
  if inputs.position_key is not None:
    position_query = _scaled(query, inputs.position_bias)
    with jax.named_scope("position_scores"):
      position_key = inputs.position_key.transpose(1, 2, 0)
      scores += _position_scores(position_query, position_key)
  with jax.named_scope("attention_softmax"):
    if inputs.slopes is not None:
      distance = attention.distances(*scores.shape[2:])
      scores -= attention.linear_penalties(inputs.slopes, distance)[:, None]
    visible = attention.visible_keys(inputs.reach, key.shape[1])[None]
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
  if dropout is not None:
    dropout = dropout._replace(seeds=dropout.seeds.T)  # Here heads come first.
  weights = dropout_lib.drop_weights(weights, dropout, first_query=0)
  with jax.named_scope("attention_values"):
    values = dense.product(weights, value.transpose(2, 0, 1, 3))
  return values.astype(query.dtype).transpose(1, 2, 0, 3)


def _scaled(query: jax.Array, bias: jax.Array | None) -> jax.Array:
  """The sum of [B, T, H, Dh] and [H, Dh] over the root of Dh, [H, B, T, Dh].

  With matrices of float32 XLA sums the gradient of the bias faster.
  """
  wide = query.astype(jnp.float32)
  if bias is not None:
    flat = wide.reshape(-1, bias.size)
    wide = flat + bias.reshape(1, -1).astype(jnp.float32)
  wide = wide.reshape(query.shape) * query.shape[-1] ** -0.5
  return wide.astype(query.dtype).transpose(2, 0, 1, 3)


def _position_scores(query: jax.Array, position_key: jax.Array) -> jax.Array:
  """The position term of [H, B, T, Dh] by [H, Dh, K], aligned with the keys.

  A column of zeros in front makes the relative shift one slice.
  """
  heads, lanes, rows, width = query.shape
  padded = jnp.pad(position_key, ((0, 0), (0, 0), (1, 0)))
  scores = dense.product(query.reshape(heads, lanes * rows, width), padded)
  return _shift(scores.reshape(heads, lanes, rows, -1))


@jax.custom_vjp
def _shift(scores: jax.Array) -> jax.Array:
  """`attention.rel_shift` of [..., T, K + 1] with an empty first column."""
  *outer, rows, columns = scores.shape
  flat = scores.reshape(*outer, rows * columns)
  return flat[..., rows:].reshape(*outer, rows, columns - 1)


def _shift_backward(_, gradient):
  *outer, rows, columns = gradient.shape
  # XLA would turn known zeros into a padding, which is four times slower.
  zeros = jnp.zeros((*outer, rows), gradient.dtype)
  zeros = jax.lax.optimization_barrier(zeros)
  flat = gradient.reshape(*outer, rows * columns)
  joined = jnp.concatenate([zeros, flat], axis=-1)
  return (joined.reshape(*outer, rows, columns + 1),)


_shift.defvjp(lambda scores: (_shift(scores), None), _shift_backward)
