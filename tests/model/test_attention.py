"""Relative attention against its definition, query by query."""

import itertools
import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tests import comparison
from tests import oracle
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.encodings import distances

HEADS, WIDTH, LANES, MODEL_DIM = 2, 4, 2, 8
ROUNDINGS = 30  # Float32 against float64, see `comparison`.


def _normal(*shape, seed=0):
  generator = np.random.default_rng((seed, *shape))
  return jnp.asarray(generator.standard_normal(shape), jnp.float32)


def test_shapes_are_checked_while_testing():
  with pytest.raises(jaxtyping.TypeCheckError, match="B H T K"):
    attention.rel_shift(jnp.zeros((HEADS, 3, 4)))


@pytest.mark.parametrize(
  ("queries", "remembered"), [(1, 0), (1, 4), (4, 0), (3, 5), (5, 2), (4, 4)]
)
def test_rel_shift_finds_the_column_of_each_distance(queries, remembered):
  keys = queries + remembered
  scores = _normal(LANES, HEADS, queries, keys)
  shifted = attention.rel_shift(scores)
  for i, j in itertools.product(range(queries), range(keys)):
    distance = remembered + i - j
    if distance >= 0:
      expected = scores[:, :, i, keys - 1 - distance]
      np.testing.assert_array_equal(shifted[:, :, i, j], expected)


def test_encodings_are_all_sines_then_all_cosines():
  actual = distances.position_encodings(40, MODEL_DIM, clamp_len=0)
  expected = [oracle.encoding(39 - row, MODEL_DIM, 0) for row in range(40)]
  # Angles up to 39 are rounded, too.
  comparison.assert_close(actual, expected, roundings=40)
  assert actual[-1].tolist() == [0] * 4 + [1] * 4


def test_encodings_hold_for_the_longest_published_memory():
  """Angles of 3,800 are rounded to 2e-4 in float32."""
  actual = distances.position_encodings(3801, MODEL_DIM, clamp_len=0)
  expected = oracle.encoding(3800, MODEL_DIM, 0)
  np.testing.assert_allclose(actual[0], expected, atol=1e-3)


def test_clamped_distances_share_an_encoding():
  free = distances.position_encodings(10, MODEL_DIM, clamp_len=0)
  clamped = distances.position_encodings(10, MODEL_DIM, clamp_len=4)
  np.testing.assert_array_equal(clamped[-5:], free[-5:])
  np.testing.assert_array_equal(clamped[:-5], np.tile(free[-5], (5, 1)))
  assert len(np.unique(clamped, axis=0)) == 5


def test_visible_keys_are_those_within_reach():
  reach = jnp.array([[0, 4, 2], [9, 0, 1]])
  actual = attention.visible_keys(reach, 5)
  for lane, i, j in itertools.product(range(2), range(3), range(5)):
    distance = 2 + i - j
    assert actual[lane, i, j] == (0 <= distance <= reach[lane, i])


def test_penalties_fall_to_zero_at_the_query():
  distance = attention.distances(2, 4)
  actual = attention.linear_penalties(jnp.array([0.5, 0.25]), distance)
  expected = np.array([[[2, 1, 0, -1], [3, 2, 1, 0]]])
  np.testing.assert_array_equal(actual, expected * [[[0.5]], [[0.25]]])


@jax.jit
def _attend(query, key, value, position_key, biases, reach):
  return attention.relative_attention(
    query,
    key,
    value,
    position_key,
    content_bias=biases[0],
    position_bias=biases[1],
    reach=reach,
    dropout=None,
  )


def _arguments(queries, remembered):
  """Everything but reach."""
  keys = queries + remembered
  return (
    _normal(LANES, queries, HEADS, WIDTH, seed=1),
    _normal(LANES, keys, HEADS, WIDTH, seed=2),
    _normal(LANES, keys, HEADS, WIDTH, seed=3),
    _normal(keys, HEADS, WIDTH, seed=4),
    (_normal(HEADS, WIDTH, seed=5), _normal(HEADS, WIDTH, seed=6)),
  )


@pytest.mark.parametrize("window", [math.inf, 3, 1, 0])
@pytest.mark.parametrize(
  ("queries", "remembered"), [(1, 0), (1, 6), (4, 0), (3, 7), (5, 2), (4, 4)]
)
def test_attention_equals_the_loops(queries, remembered, window):
  arguments = _arguments(queries, remembered)
  query, key, value, position_key, biases = arguments
  context = range(remembered, remembered + queries)
  reach = jnp.array([[int(min(i, window)) for i in context]] * LANES)
  actual = _attend(*arguments, reach)
  for lane in range(LANES):
    expected = oracle.attention(
      np.float64(query[lane]),
      np.float64(key[lane]),
      np.float64(value[lane]),
      # The last row encodes distance 0.
      lambda distance: np.float64(position_key[::-1][distance]),
      *biases,
      window=window,
    )
    comparison.assert_close(actual[lane], expected, roundings=ROUNDINGS)


@pytest.mark.parametrize("slopes", [None, (0.5, 0.125)])
def test_attention_without_keys_of_distances_equals_the_loops(slopes):
  query, key, value, *_ = _arguments(3, 7)
  zeros = np.zeros((HEADS, WIDTH))
  actual = attention.relative_attention(
    query,
    key,
    value,
    slopes=slopes and jnp.array(slopes),
    reach=jnp.full((LANES, 3), 5),
    dropout=None,
  )
  for lane in range(LANES):
    arrays = (np.float64(array[lane]) for array in (query, key, value))
    expected = oracle.attention(
      *arrays, lambda distance: zeros, zeros, zeros, slopes, window=5
    )
    comparison.assert_close(actual[lane], expected, roundings=ROUNDINGS)


def test_what_is_out_of_reach_cannot_be_felt():
  """However large, as long as it is finite: 0 times NaN is NaN."""
  query, key, value, position_key, biases = _arguments(3, 7)
  reach = jnp.array([[1, 2, 3], [0, 1, 2]])
  clean = _attend(query, key, value, position_key, biases, reach)
  stale = _attend(
    query,
    key.at[:, :6].set(1e18),
    value.at[:, :6].set(1e30),
    position_key,
    biases,
    reach,
  )
  np.testing.assert_array_equal(stale, clean)
  near = value.at[:, 6].add(1.0)
  moved = _attend(query, key, near, position_key, biases, reach)
  assert np.abs(moved - clean).max() > 0.01


def test_large_scores_stay_finite():
  query, *rest = _arguments(4, 4)
  reach = jnp.full((LANES, 4), 9)
  assert np.all(np.isfinite(_attend(query * 1e6, *rest, reach)))


def test_dropout_acts_on_probabilities_and_is_not_renormalised():
  keys = 8  # And as wide, so that values can show the probabilities.
  shown = jnp.eye(keys)[None, :, None]

  def attend(dropout):
    return attention.relative_attention(
      _normal(LANES, 4, HEADS, keys, seed=1),
      _normal(LANES, keys, HEADS, keys, seed=2),
      jnp.broadcast_to(shown, (LANES, keys, HEADS, keys)),
      _normal(keys, HEADS, keys, seed=3),
      content_bias=_normal(HEADS, keys, seed=4),
      position_bias=_normal(HEADS, keys, seed=5),
      reach=jnp.full((LANES, 4), keys),
      dropout=dropout,
    )

  seeds = jnp.arange(LANES * HEADS).reshape(LANES, HEADS)
  whole, part = attend(None), attend(dropout_lib.AttentionDropout(0.5, seeds))
  np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-5)
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
    kept = np.asarray(dropout_lib.kept(seed, query, key, rate=rate), float)
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


def test_bfloat16_stays_within_its_rounding():
  arguments = _arguments(5, 6)
  reach = jnp.full((LANES, 5), 9)
  wide = _attend(*arguments, reach)
  narrow = jax.tree.map(lambda array: array.astype(jnp.bfloat16), arguments)
  actual = _attend(*narrow, reach)
  assert actual.dtype == jnp.bfloat16
  comparison.assert_close(actual, wide, roundings=4)
