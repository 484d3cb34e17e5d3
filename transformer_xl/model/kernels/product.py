"""A matrix product whose gradients are fast products on a CPU.

XLA on CPU is slow at a product that adds up over the rows of both factors, as
the gradient of a kernel does: the smaller factor is transposed before it. And
it multiplies bfloat16 in its own type only if both factors lie as they are
multiplied and the sums are float32; all else it does in float32, which takes
processors with bfloat16 units longer (docs/kernels.md).
"""

import jax
import jax.numpy as jnp


def transposed(matrix: jax.Array) -> jax.Array:
  """Transposes [..., M, N] in memory, not inside the operation that reads."""
  *outer, rows, columns = matrix.shape
  result = jnp.swapaxes(matrix, -1, -2)
  # XLA would keep the old layout; through a flat array it cannot.
  if matrix.dtype == jnp.bfloat16:
    result = result.reshape(*outer, columns * rows)
  result = jax.lax.optimization_barrier(result)
  return result.reshape(*outer, columns, rows)


@jax.custom_vjp
def product(left: jax.Array, right: jax.Array) -> jax.Array:
  """[..., L, M] by [..., M, N], added up in float32."""
  return jnp.matmul(left, right, preferred_element_type=jnp.float32)


def _product_backward(factors, gradient):
  left, right = factors
  gradient = gradient.astype(left.dtype)
  of_left = jnp.einsum(
    "...ln,...mn->...lm", gradient, right, preferred_element_type=jnp.float32
  )
  swaps = left.shape[-1] > gradient.shape[-1]
  small, large = (gradient, left) if swaps else (left, gradient)
  of_right = jnp.matmul(
    transposed(small), large, preferred_element_type=jnp.float32
  )
  if swaps:
    of_right = jnp.swapaxes(jax.lax.optimization_barrier(of_right), -1, -2)
  return of_left.astype(left.dtype), of_right.astype(right.dtype)


product.defvjp(
  lambda left, right: (product(left, right), (left, right)), _product_backward
)
