"""Matrix products, in the form that a device is fast at.

Nothing here changes what is computed: `times(x, w)` is x @ w, and
`product(a, b)` is a @ b with sums in float32.

XLA on CPU is slow at a product that adds up over the rows of both factors, as
the gradient of a kernel does: the smaller factor is transposed before it. And
it multiplies bfloat16 in its own type only if both factors lie as they are
multiplied and the sums are float32; all else it does in float32, which takes
processors with bfloat16 units longer (docs/kernels.md).
"""

import functools

import jax
import jax.numpy as jnp

from transformer_xl import hardware

# XLA's CPU backend gives a thread at least this many multiplications.
_PART = 1 << 16
_MAX_PARTS = 4
_TPU_ROWS = 8  # A register of a TPU has as many.

Factors = tuple[jax.Array, jax.Array]  # Of a product, left and right.

_matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def times(
  rows: jax.Array, kernel: jax.Array, num_constant: int = 0
) -> jax.Array:
  """Multiplies [..., D] by [D, F], in the form that the device is fast at.

  Args:
    rows: factors; [B, K, D] with `num_constant`.
    kernel: of a dense layer.
    num_constant: how many of the first rows of K need no gradient.
  """
  if num_constant:
    return _times_constant(rows, kernel, num_constant)
  return _times(rows, kernel)


def _times(rows: jax.Array, kernel: jax.Array) -> jax.Array:
  """Multiplies rows by a kernel as this kind of device is fast at.

  With the lanes as an axis of their own, XLA on CPU copies what it multiplies
  for the gradient of the kernel, and takes a third longer for it. A single row
  it multiplies in one thread, and the products of a batch in several.
  """
  if not hardware.is_cpu():
    # Flat, autodiff would keep the rows a second time.
    return (on_matrix_units(rows) @ kernel)[..., : rows.shape[-2], :]
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
    result = product(flat, kernel).astype(rows.dtype)
  else:
    result = flat @ kernel
  return result.reshape(*rows.shape[:-1], kernel.shape[-1])


def on_matrix_units(rows: jax.Array) -> jax.Array:
  """Repeats a single row, [..., 1, D], _TPU_ROWS times if this is a TPU.

  XLA multiplies a single row on the vector units, which read a kernel several
  times as slowly as the memory gives it.
  """
  if rows.shape[-2] != 1 or not hardware.device_kind().startswith("TPU"):
    return rows
  rows = jnp.broadcast_to(rows, (*rows.shape[:-2], _TPU_ROWS, rows.shape[-1]))
  return jax.lax.optimization_barrier(rows)  # Else XLA sees they are one.


def logits(rows: jax.Array, table: jax.Array) -> jax.Array:
  """Multiplies [..., D] by the rows of [V, D], added up in float32."""
  if _is_narrow_on_cpu(rows):
    result = _times_table(rows.reshape(-1, rows.shape[-1]), table)
    return result.reshape(*rows.shape[:-1], table.shape[0])
  return _einsum("...d,vd->...v", on_matrix_units(rows), table)[
    ..., : rows.shape[-2], :
  ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _times_constant(
  rows: jax.Array, kernel: jax.Array, num_constant: int
) -> jax.Array:
  del num_constant
  return _times(rows, kernel)


def _times_constant_forward(
  rows: jax.Array, kernel: jax.Array, num_constant: int
) -> tuple[jax.Array, Factors]:
  del num_constant
  return _times(rows, kernel), (rows, kernel)


def _times_constant_backward(
  num_constant: int, factors: Factors, gradient: jax.Array
) -> Factors:
  """Gradients of the kernel and of the rows that are not constant.

  XLA would compute the gradient of all rows and drop most of it.
  """
  rows, kernel = factors
  _, of_kernel = jax.vjp(functools.partial(_times, rows), kernel)

  def times_kernel(recent: jax.Array) -> jax.Array:
    return _times(recent, kernel)

  _, of_rows = jax.vjp(times_kernel, rows[:, num_constant:])
  (recent_gradient,) = of_rows(gradient[:, num_constant:])
  padding = ((0, 0), (num_constant, 0), (0, 0))
  rows_gradient = jnp.pad(recent_gradient, padding)
  (kernel_gradient,) = of_kernel(gradient)
  return rows_gradient, kernel_gradient


_times_constant.defvjp(_times_constant_forward, _times_constant_backward)


def _is_narrow_on_cpu(rows: jax.Array) -> bool:
  """Whether XLA needs a float32 result to multiply these rows fast."""
  return rows.dtype == jnp.bfloat16 and hardware.is_cpu()


def _num_parts(kernel: jax.Array) -> int:
  """The number of products to split a CPU's product with one row into."""
  parts = _MAX_PARTS
  while parts > 1 and (kernel.shape[0] % parts or kernel.size < parts * _PART):
    parts //= 2
  return parts


def plus(rows: jax.Array, bias: jax.Array) -> jax.Array:
  """Adds a bias [F] to rows [B, T, F]."""
  if _is_narrow_on_cpu(rows):
    return _plus(rows, bias)
  return rows + bias[None, None]


@jax.custom_vjp
def _plus(rows: jax.Array, bias: jax.Array) -> jax.Array:
  return rows + bias[None, None]


def _plus_forward(rows: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
  return _plus(rows, bias), None


def _plus_backward(_: None, gradient: jax.Array) -> Factors:
  """The gradients of the rows and of the bias.

  XLA on CPU takes twenty times as long for the sum of what it has just computed
  in bfloat16.
  """
  gradient = jax.lax.optimization_barrier(gradient)
  return gradient, jnp.sum(gradient, axis=(0, 1))


_plus.defvjp(_plus_forward, _plus_backward)


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
  """Multiplies [..., L, M] by [..., M, N], added up in float32."""
  return _matmul(left, right)


def _product_forward(
  left: jax.Array, right: jax.Array
) -> tuple[jax.Array, Factors]:
  return product(left, right), (left, right)


def _product_backward(factors: Factors, gradient: jax.Array) -> Factors:
  """Gradients of both factors, by products that XLA multiplies fast."""
  left, right = factors
  gradient = gradient.astype(left.dtype)
  of_left = _einsum("...ln,...mn->...lm", gradient, right)
  if left.shape[-1] <= gradient.shape[-1]:
    of_right = _matmul(transposed(left), gradient)
  else:
    of_right = _matmul(transposed(gradient), left)
    of_right = jnp.swapaxes(jax.lax.optimization_barrier(of_right), -1, -2)
  return of_left.astype(left.dtype), of_right.astype(right.dtype)


product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def _times_table(rows: jax.Array, table: jax.Array) -> jax.Array:
  """Multiplies [L, D] by the rows of [V, D], added up in float32.

  Only the gradient gains by transposing the table, which takes several times as
  long as this product of a segment.
  """
  return _einsum("ld,vd->lv", rows, table)


def _times_table_forward(
  rows: jax.Array, table: jax.Array
) -> tuple[jax.Array, Factors]:
  return _times_table(rows, table), (rows, table)


def _times_table_backward(factors: Factors, gradient: jax.Array) -> Factors:
  rows, table = factors
  of_rows, of_transposed = _product_backward(
    (rows, transposed(table)), gradient
  )
  return of_rows, of_transposed.T


_times_table.defvjp(_times_table_forward, _times_table_backward)
