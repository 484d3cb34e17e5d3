"""Rotations against what their paper prints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests.oracles import rope
from transformer_xl import hardware
from transformer_xl.model.encodings import distances

WIDTH = 6
FREQUENCIES = distances.rotary_frequencies(WIDTH)


def test_rotation_is_the_matrix_of_the_paper():
  """Su et al. 2021, equation 15, whose pairs are neighbouring channels.

  Here the first channels of all pairs come before the second ones.
  """
  row = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)
  order = [0, 3, 1, 4, 2, 5]  # Channels by pair.
  for position in (0, 1, 7, -300):
    matrix = np.zeros((WIDTH, WIDTH))
    for k in range(WIDTH // 2):
      angle = position * 10000 ** (-2 * k / WIDTH)
      cosine, sine = np.cos(angle), np.sin(angle)
      pair = slice(2 * k, 2 * k + 2)
      matrix[pair, pair] = [[cosine, -sine], [sine, cosine]]
    angles = distances.rotary_angles(jnp.array([[position]]), FREQUENCIES)
    actual = distances.rotated(jnp.asarray(row)[None], angles)[0]
    comparison.assert_close(
      actual[jnp.array(order)], matrix @ row[order], roundings=10
    )


@pytest.mark.parametrize("distance", [0, 1, 6])
def test_products_depend_on_the_difference_of_positions_alone(distance):
  """However large they are, and where they overflow."""
  generator = np.random.default_rng(1)
  query, key = generator.standard_normal((2, 1, WIDTH)).astype(np.float32)

  def product(position):
    positions = jnp.array([[[position]]]) + jnp.array([[[distance]], [[0]]])
    rotated_query, rotated_key = map(
      distances.rotated,
      jnp.asarray([query, key]),
      distances.rotary_angles(positions, FREQUENCIES),
    )
    return jnp.sum(rotated_query * rotated_key)

  expected = np.sum(
    rope.rotated(query[None], [distance]) * rope.rotated(key[None], [0])
  )
  # In proportion to the vectors, since their products cancel.
  size = np.linalg.norm(query) * np.linalg.norm(key)
  tolerance = float(10 * comparison.FLOAT32 * size)
  for position in (0, 3, -50, 5_000_000, 2**31 - 3):
    assert product(position) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tpu_moves_channels_by_a_product(dtype, monkeypatch):
  generator = np.random.default_rng(3)
  rows, weights = (
    jnp.asarray(generator.standard_normal((5, 2, WIDTH)), dtype)
    for _ in range(2)
  )
  angles = distances.rotary_angles(jnp.arange(5)[:, None, None], FREQUENCIES)

  def both():
    rotated, pull = jax.vjp(lambda rows: distances.rotated(rows, angles), rows)
    return rotated, *pull(weights)

  expected, plain = both(), str(jax.make_jaxpr(lambda: both())())
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  actual, by_product = both(), str(jax.make_jaxpr(lambda: both())())
  assert "dot_general" in by_product
  assert "= split[" in plain
  assert "= split[" not in by_product
  roundings = 10 if dtype == "float32" else 2
  for array, want in zip(actual, expected, strict=True):
    assert array.dtype == dtype
    comparison.assert_close(array, want, roundings=roundings)


def test_channels_may_be_any_axis():
  rows = jnp.asarray(np.random.default_rng(2).standard_normal((5, WIDTH)))
  positions = jnp.arange(5)
  angles = distances.rotary_angles(positions[:, None], FREQUENCIES)
  across = distances.rotary_angles(positions[None], FREQUENCIES, axis=0)
  np.testing.assert_array_equal(
    distances.rotated(rows.T, across, axis=0).T,
    distances.rotated(rows, angles),
  )
