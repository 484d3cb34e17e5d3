"""Products with parameters are the same in every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from transformer_xl import hardware
from transformer_xl.model.kernels import dense


@pytest.mark.parametrize(
  ("shape", "num_parts"),
  [
    ((256, 1024), 4),
    ((256, 512), 2),
    ((256, 256), 1),  # Too small.
    ((254, 2048), 2),  # Four parts would be of unequal length.
    ((255, 2048), 1),
  ],
)
def test_a_row_is_multiplied_in_parts(shape, num_parts):
  random = np.random.default_rng(0)
  row = random.standard_normal((1, 1, shape[0]), np.float32)
  kernel = random.standard_normal(shape, np.float32)
  text = str(jax.make_jaxpr(dense.times)(row, kernel))
  part = f"f32[{num_parts},{shape[0] // num_parts},{shape[1]}]"
  assert (part in text) == (num_parts > 1)
  assert ("reduce_sum" in text) == (num_parts > 1)
  want = row.astype(np.float64) @ kernel.astype(np.float64)
  # Sums of 256 products.
  product = dense.times(jnp.asarray(row), jnp.asarray(kernel))
  comparison.assert_close(product, want, roundings=30)


def test_several_rows_are_one_product():
  rows, kernel = jnp.ones((2, 3, 256)), jnp.ones((256, 1024))
  text = str(jax.make_jaxpr(dense.times)(rows, kernel))
  assert text.count("dot_general") == 1
  assert "f32[6,1024]" in text


# One row, one column, odd sizes, and both orders of the factors' widths.
SHAPES = [(70, 40, 130), (96, 130, 40), (1, 64, 3), (64, 1, 7), (65, 7, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_products_and_gradients_are_those_of_float64(shape, dtype):
  rows, kernel, weights = _factors(shape, dtype)
  table = kernel.T

  def loss(rows, kernel, table):
    states = dense.times(rows, kernel)
    assert states.dtype == rows.dtype
    logits = dense.logits(rows, table)
    assert logits.dtype == jnp.float32
    return jnp.sum((states + 2 * logits) * weights)

  gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(rows, kernel, table)
  rows, kernel, weights = (
    np.asarray(array, np.float64) for array in (rows, kernel, weights)
  )
  of_kernel = np.einsum("btd,btf->df", rows, weights)
  of_rows = weights @ kernel.T
  wanted = (3 * of_rows, of_kernel, 2 * of_kernel.T)
  for gradient, want in zip(gradients, wanted, strict=True):
    assert gradient.dtype == dtype
    # In bfloat16, factors and results are rounded, and two sums are added.
    roundings = 2 if dtype == "bfloat16" else 30
    comparison.assert_close(gradient, want, roundings=roundings)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_gradient_of_a_bias_is_that_of_float64(dtype):
  rows, _, weights = _factors((70, 40, 40), dtype)
  bias = jnp.arange(40, dtype=rows.dtype)
  result, differentiate = jax.vjp(dense.plus, rows, bias)
  np.testing.assert_array_equal(result, rows + bias[None, None])
  text = str(jax.make_jaxpr(differentiate)(weights))
  assert ("optimization_barrier" in text) == (dtype == "bfloat16")

  of_rows, of_bias = differentiate(weights)
  assert of_bias.dtype == dtype
  np.testing.assert_array_equal(of_rows, weights)
  want = np.asarray(weights, np.float64).sum(axis=(0, 1))
  # Sums of 70 numbers; in bfloat16 it is the result that is rounded.
  roundings = 2 if dtype == "bfloat16" else 70
  comparison.assert_close(of_bias, want, roundings=roundings)


def test_only_the_gradient_transposes_the_table():
  rows = jnp.ones((1, 128, 8), jnp.bfloat16)
  table = jnp.ones((300, 8), jnp.bfloat16)

  def loss(rows, table):
    return jnp.sum(dense.logits(rows, table))

  forward = str(jax.make_jaxpr(loss)(rows, table))
  backward = str(jax.make_jaxpr(jax.grad(loss))(rows, table))
  assert "optimization_barrier" not in forward
  assert "optimization_barrier" in backward


def test_only_bfloat16_on_a_cpu_is_added_up_in_float32(monkeypatch):
  def sums(dtype):
    rows, kernel, _ = _factors((8, 4, 6), dtype)
    # A function of its own, since JAX keeps what it has traced.
    text = str(
      jax.make_jaxpr(lambda *factors: dense.times(*factors))(rows, kernel)
    )
    return "preferred_element_type=float32" in text, "custom_vjp" in text

  assert sums("bfloat16") == (True, True)
  assert sums("float32") == (True, False)
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  assert sums("bfloat16") == (False, False)


def test_what_is_transposed_is_the_transpose():
  matrix = jnp.arange(24.0).reshape(2, 3, 4)
  for dtype in ("float32", "bfloat16"):
    result = jax.jit(dense.transposed)(matrix.astype(dtype))
    np.testing.assert_array_equal(
      np.asarray(result, np.float32), np.swapaxes(matrix, 1, 2)
    )


def _factors(shape, dtype):
  """Rows [2, L / 2, M], or one lane, a kernel [M, N], and weights."""
  num_rows, inner, columns = shape
  random = np.random.default_rng(0)
  lanes = 2 if num_rows % 2 == 0 else 1
  rows = random.standard_normal((lanes, num_rows // lanes, inner))
  kernel = random.standard_normal((inner, columns))
  weights = random.standard_normal((*rows.shape[:2], columns))
  return tuple(jnp.asarray(array, dtype) for array in (rows, kernel, weights))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_constant_rows_have_no_gradient_and_change_no_other(dtype):
  generator = np.random.default_rng(0)
  rows, kernel, weights = (
    jnp.asarray(generator.standard_normal(shape), dtype)
    for shape in ((2, 7, 24), (24, 40), (2, 7, 40))
  )

  def gradients(*count):
    def loss(rows, kernel):
      return jnp.sum(
        (dense.times(rows, kernel, *count) * weights).astype(float)
      )

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(rows, kernel)

  (every, of_kernel), (some, same) = gradients(), gradients(3)
  np.testing.assert_array_equal(some[:, :3], 0)
  assert every[:, :3].any()
  # Another number of rows may be summed in another order.
  roundings = 2 if dtype == "bfloat16" else 30
  for got, want in ((some[:, 3:], every[:, 3:]), (same, of_kernel)):
    comparison.assert_close(got, want, roundings=roundings)


def test_a_tpu_multiplies_a_row_on_its_matrix_units(monkeypatch):
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  generator = np.random.default_rng(0)
  row, kernel = (
    jnp.asarray(generator.standard_normal(shape), jnp.float32)
    for shape in ((2, 1, 24), (24, 40))
  )
  want = np.asarray(row, np.float64) @ np.asarray(kernel, np.float64)
  for product in (
    jax.jit(lambda row: dense.times(row, kernel)),
    jax.jit(lambda row: dense.logits(row, kernel.T)),
  ):
    assert "2,8,24]" in str(jax.make_jaxpr(product)(row))
    result = product(row)
    assert result.shape == (2, 1, 40)
    comparison.assert_close(result, want, roundings=30)


@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_a_tpu_multiplies_no_row_as_well_as_one(num_rows, monkeypatch):
  """A memory that compresses to nothing has none."""
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  rows = jnp.ones((2, num_rows, 8))
  found = dense.times(rows, jnp.ones((8, 3)))
  np.testing.assert_array_equal(found, np.full((2, num_rows, 3), 8.0))
