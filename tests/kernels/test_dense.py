"""Products with parameters are the same in every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_xl.kernels import dense


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
  # Some 256 float32 products of order 1, summed.
  np.testing.assert_allclose(
    dense.times(jnp.asarray(row), jnp.asarray(kernel)), want, atol=2e-4
  )


def test_several_rows_are_one_product():
  rows, kernel = jnp.ones((2, 3, 256)), jnp.ones((256, 1024))
  text = str(jax.make_jaxpr(dense.times)(rows, kernel))
  assert text.count("dot_general") == 1
  assert "f32[6,1024]" in text
