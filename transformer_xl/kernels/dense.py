"""Products with matrices of parameters, in the form a device is fast at."""

import jax
import jax.numpy as jnp

from transformer_xl.kernels import dispatch

# Multiplications that XLA's CPU backend hands to a thread of its own.
_PART = 1 << 16
_MAX_PARTS = 4


def times(rows: jax.Array, kernel: jax.Array) -> jax.Array:
  """[..., D] by [D, F], as matrices.

  With the lanes as an axis of their own, XLA on CPU copies what it multiplies
  for the gradient of the kernel, and takes a third longer for it. A single row
  it multiplies in one thread, and the products of a batch in several.
  """
  flat = rows.reshape(-1, rows.shape[-1])
  parts = _num_parts(kernel) if flat.shape[0] == 1 else 1
  if parts == 1:
    product = flat @ kernel
  else:
    product = jnp.einsum(
      "pd,pdf->pf",
      flat.reshape(parts, -1),
      kernel.reshape(parts, -1, kernel.shape[-1]),
    )
    product = jnp.sum(product, axis=0)
  return product.reshape(*rows.shape[:-1], kernel.shape[-1])


def _num_parts(kernel: jax.Array) -> int:
  """Into how many products to cut that with a row."""
  if dispatch.device_kind() != "cpu":
    return 1
  parts = _MAX_PARTS
  while parts > 1 and (kernel.shape[0] % parts or kernel.size < parts * _PART):
    parts //= 2
  return parts
