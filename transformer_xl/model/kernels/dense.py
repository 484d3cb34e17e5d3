"""Products with matrices of parameters, in the form a device is fast at."""

import jax
import jax.numpy as jnp

from transformer_xl.model.kernels import device
from transformer_xl.model.kernels import product

# XLA's CPU backend gives a thread at least this many multiplications.
_PART = 1 << 16
_MAX_PARTS = 4
_MIN_ROWS = 64  # From this many rows on, transposing the table pays.


def times(rows: jax.Array, kernel: jax.Array) -> jax.Array:
  """[..., D] by [D, F], as matrices.

  With the lanes as an axis of their own, XLA on CPU copies what it multiplies
  for the gradient of the kernel, and takes a third longer for it. A single row
  it multiplies in one thread, and the products of a batch in several.
  """
  flat = rows.reshape(-1, rows.shape[-1])
  parts = _num_parts(kernel) if flat.shape[0] == 1 else 1
  if parts > 1:
    result = jnp.einsum(
      "pd,pdf->pf",
      flat.reshape(parts, -1),
      kernel.reshape(parts, -1, kernel.shape[-1]),
    )
    result = jnp.sum(result, axis=0)
  elif _is_narrow_on_cpu(rows):
    result = product.product(flat, kernel).astype(rows.dtype)
  else:
    result = flat @ kernel
  return result.reshape(*rows.shape[:-1], kernel.shape[-1])


def logits(rows: jax.Array, table: jax.Array) -> jax.Array:
  """[..., D] by the rows of [V, D], added up in float32."""
  flat = rows.reshape(-1, rows.shape[-1])
  if _is_narrow_on_cpu(rows) and flat.shape[0] >= _MIN_ROWS:
    result = product.product(flat, product.transposed(table))
    return result.reshape(*rows.shape[:-1], table.shape[0])
  return jnp.einsum(
    "...d,vd->...v", rows, table, preferred_element_type=jnp.float32
  )


def _is_narrow_on_cpu(rows: jax.Array) -> bool:
  """Whether XLA multiplies fast only if the result is float32."""
  return rows.dtype == jnp.bfloat16 and device.device_kind() == "cpu"


def _num_parts(kernel: jax.Array) -> int:
  """The number of products to split a product with one row into."""
  parts = _MAX_PARTS if device.device_kind() == "cpu" else 1
  while parts > 1 and (kernel.shape[0] % parts or kernel.size < parts * _PART):
    parts //= 2
  return parts
