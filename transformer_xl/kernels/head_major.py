"""Relative attention in plain XLA, in the forms that a CPU multiplies fast.

Heads come first, so that the position scores of all lanes are one matrix
product for each head. Queries are scaled before the products, not the larger
scores after them. Gradients transpose the smaller factor of a product: XLA's
own choice there runs at a quarter of the speed (docs/kernels.md).
"""

import jax
import jax.numpy as jnp

from transformer_xl import attention
from transformer_xl import shapes


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  dropout: attention.Dropout | None,
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments.

  The axes within are [H, B, T or K, Dh].
  """
  scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  content_query = (query + content_bias[None, None]) * scale
  position_query = (query + position_bias[None, None]) * scale
  scores = _product(
    content_query.transpose(2, 0, 1, 3), key.transpose(2, 0, 3, 1)
  ) + _position_scores(
    position_query.transpose(2, 0, 1, 3), position_key.transpose(1, 2, 0)
  )
  visible = attention.visible_keys(reach, key.shape[1])[None]  # [1, B, T, K]
  scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
  weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
  if dropout is not None:
    dropout = dropout._replace(seeds=dropout.seeds.T)  # Here heads come first.
  weights = attention.drop(weights, dropout, first_query=0)
  values = _product(weights, value.transpose(2, 0, 1, 3))
  return values.astype(query.dtype).transpose(1, 2, 0, 3)


def _position_scores(query: jax.Array, position_key: jax.Array) -> jax.Array:
  """The position term of [H, B, T, Dh] by [H, Dh, K], aligned with the keys.

  A column of zeros in front makes the relative shift one slice.
  """
  heads, lanes, rows, width = query.shape
  columns = position_key.shape[-1]
  padded = jnp.pad(position_key, ((0, 0), (0, 0), (1, 0)))
  scores = _product(query.reshape(heads, lanes * rows, width), padded)
  return _shift(scores.reshape(heads, lanes, rows, columns + 1))


@jax.custom_vjp
def _shift(scores: jax.Array) -> jax.Array:
  """`attention.rel_shift` of [..., T, K + 1] with an empty first column."""
  *outer, rows, columns = scores.shape
  flat = scores.reshape(*outer, rows * columns)
  return flat[..., rows:].reshape(*outer, rows, columns - 1)


def _shift_forward(scores):
  return _shift(scores), None


def _shift_backward(_, gradient):
  *outer, rows, columns = gradient.shape
  # Of known zeros XLA would make a padding, which is four times slower.
  zeros = jnp.zeros((*outer, rows), gradient.dtype)
  zeros = jax.lax.optimization_barrier(zeros)
  flat = gradient.reshape(*outer, rows * columns)
  joined = jnp.concatenate([zeros, flat], axis=-1)
  return (joined.reshape(*outer, rows, columns + 1),)


_shift.defvjp(_shift_forward, _shift_backward)


@jax.custom_vjp
def _product(left: jax.Array, right: jax.Array) -> jax.Array:
  """[..., L, M] by [..., M, N], added up in float32."""
  return jnp.matmul(left, right, preferred_element_type=jnp.float32)


def _product_forward(left, right):
  return _product(left, right), (left, right)


def _product_backward(factors, gradient):
  left, right = factors
  gradient = gradient.astype(left.dtype)
  of_left = jnp.matmul(
    gradient,
    jnp.swapaxes(right, -1, -2),
    preferred_element_type=jnp.float32,
  )
  if left.shape[-1] <= gradient.shape[-1]:
    of_right = _transposed_product(left, gradient)
  else:
    of_right = jnp.swapaxes(_transposed_product(gradient, left), -1, -2)
  return of_left.astype(left.dtype), of_right.astype(right.dtype)


def _transposed_product(left, right):
  """The transpose of `left` by `right`."""
  # Else the transposition would become part of the product again.
  left = jax.lax.optimization_barrier(jnp.swapaxes(left, -1, -2))
  return jnp.matmul(left, right, preferred_element_type=jnp.float32)


_product.defvjp(_product_forward, _product_backward)
