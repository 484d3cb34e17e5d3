"""Relative attention against its definition, query by query."""

import itertools

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tests.model.kernels import cases
from tests.oracles import heads
from transformer_xl import hardware
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.encodings import distances
from transformer_xl.model.kernels import xla_attention

HEADS, LANES, MODEL_DIM = 2, 2, 8
ROUNDING = 1e-5  # Float32 against float64, for values of about 1.


def _normal(*shape, seed=0):
  generator = np.random.default_rng((seed, *shape))
  return jnp.asarray(generator.standard_normal(shape), jnp.float32)


def test_shapes_are_checked_while_testing():
  with pytest.raises(jaxtyping.TypeCheckError, match="H B T K"):
    xla_attention.visible_softmax(
      jnp.zeros((HEADS, 3, 4)), jnp.zeros((LANES, 3), jnp.int32), jnp.float32
    )


@pytest.mark.parametrize(
  ("queries", "remembered"), [(1, 0), (1, 4), (4, 0), (3, 5), (5, 2), (4, 4)]
)
def test_rel_shift_finds_the_column_of_each_distance(queries, remembered):
  keys = queries + remembered
  scores = _normal(LANES, HEADS, queries, keys)
  shifted = xla_attention.rel_shift(jnp.pad(scores, [(0, 0)] * 3 + [(1, 0)]))
  assert shifted.shape == scores.shape
  for i, j in itertools.product(range(queries), range(keys)):
    distance = remembered + i - j
    if distance >= 0:
      expected = scores[:, :, i, keys - 1 - distance]
      np.testing.assert_array_equal(shifted[:, :, i, j], expected)


def test_encodings_are_all_sines_then_all_cosines():
  actual = distances.position_encodings(40, MODEL_DIM, clamp_len=0)
  expected = [heads.sinusoids(39 - row, MODEL_DIM, 0) for row in range(40)]
  np.testing.assert_allclose(actual, expected, atol=ROUNDING)
  assert actual[-1].tolist() == [0] * 4 + [1] * 4


def test_encodings_hold_for_the_longest_published_memory():
  """Angles of 3,800 are rounded to 2e-4 in float32."""
  actual = distances.position_encodings(3801, MODEL_DIM, clamp_len=0)
  expected = heads.sinusoids(3800, MODEL_DIM, 0)
  np.testing.assert_allclose(actual[0], expected, atol=1e-3)


def test_clamped_distances_share_an_encoding():
  free = distances.position_encodings(10, MODEL_DIM, clamp_len=0)
  clamped = distances.position_encodings(10, MODEL_DIM, clamp_len=4)
  np.testing.assert_array_equal(clamped[-5:], free[-5:])
  np.testing.assert_array_equal(clamped[:-5], np.tile(free[-5], (5, 1)))
  assert len(np.unique(clamped, axis=0)) == 5


def test_the_visible_mask_shows_keys_within_reach():
  reach = jnp.array([[0, 4, 2], [9, 0, 1]])
  actual = xla_attention.visible_mask(reach, 5)
  for lane, i, j in itertools.product(range(2), range(3), range(5)):
    distance = 2 + i - j
    assert actual[lane, i, j] == (0 <= distance <= reach[lane, i])


def test_penalties_fall_to_zero_at_the_query():
  distance = xla_attention.distances(2, 4)
  actual = xla_attention.linear_penalties(jnp.array([0.5, 0.25]), distance)
  expected = np.array([[[2, 1, 0, -1], [3, 2, 1, 0]]])
  np.testing.assert_array_equal(actual, expected * [[[0.5]], [[0.25]]])


def test_a_gpu_attends_from_all_queries_at_once(monkeypatch):
  arrays = cases.arguments(1, 130, 6, 1, 4)
  dropout = cases.dropout(arrays, 0.3)
  in_blocks = cases.values("xla", arrays, dropout)
  sizes = []
  attend = xla_attention._attend

  def watched(block, *arguments, **named):
    sizes.append(block.query.shape[1])
    return attend(block, *arguments, **named)

  monkeypatch.setattr(xla_attention, "_attend", watched)
  monkeypatch.setattr(hardware, "device_kind", lambda: "NVIDIA H200")
  at_once = cases.values("xla", arrays, dropout)
  assert sizes == [130]
  np.testing.assert_allclose(at_once, in_blocks, atol=ROUNDING)


def test_dropout_acts_on_probabilities_and_is_not_renormalised():
  keys = 8  # And as wide, so that values can show the probabilities.
  shown = jnp.eye(keys)[None, :, None]

  arrays = cases.arguments(LANES, 4, keys - 4, HEADS, keys)
  arrays["value"] = jnp.broadcast_to(shown, arrays["value"].shape)
  whole = cases.values("xla", arrays)
  part = cases.values("xla", arrays, cases.dropout(arrays, 0.5))
  np.testing.assert_allclose(whole.sum(-1), 1, atol=ROUNDING)
  kept = part != 0
  assert 0.3 < kept[whole > 0].mean() < 0.7
  np.testing.assert_allclose(part[kept], 2 * whole[kept], rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_what_dropout_keeps_looks_like_chance(rate):
  """Standard scores of shares and correlations, over a million weights."""
  seed, other = jnp.int32(17), jnp.int32(18)
  query = jnp.arange(1024, dtype=jnp.int32)[:, None]
  key = jnp.arange(1024, dtype=jnp.int32)[None]

  def scores(seed):
    kept = np.asarray(dropout_lib.keep_mask(seed, query, key, rate=rate), float)
    return (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))

  one = scores(seed)
  for lag in (1, 2, 64, 128):
    for product in (
      one[:, lag:] * one[:, :-lag],
      one[lag:] * one[:-lag],
      one[lag:, lag:] * one[:-lag, :-lag],
    ):
      assert abs(product.mean()) * np.sqrt(product.size) < 4
  assert abs(one.mean()) * 1024 < 4
  assert abs((one * scores(other)).mean()) * 1024 < 4
  for axis in (0, 1):  # No key or query is kept more often than others.
    assert abs(one.mean(axis) * 32).max() < 5
    assert (one.mean(axis) * 32).std() == pytest.approx(1, abs=0.1)
