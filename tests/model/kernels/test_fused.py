"""Fused attention, interpreted, against the plain one."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from tests.model.kernels import cases
from transformer_xl.model import attention
from transformer_xl.model.kernels import fused
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling

_plain = functools.partial(attention.relative_attention, dropout=None)


def _fused(**arrays):
  return _dropping(cases.dropout(arrays, 0.0), **arrays)


def _dropping(dropout, **arrays):
  return fused.relative_attention(attention.Inputs(**arrays), dropout, True)


def _assert_equal(arrays):
  cases.assert_close(
    cases.value_and_gradients(_fused, arrays),
    cases.value_and_gradients(_plain, arrays),
  )


def _rest(*values):
  return pytest.param(*values, marks=pytest.mark.rest)


# Lanes, queries, remembered, heads, head width.
@pytest.mark.parametrize(
  ("sizes", "encoding"),
  [
    ((2, 3, 12, 2, 4), "relative"),
    ((2, 130, 70, 2, 64), "relative"),
    ((2, 3, 12, 2, 4), "alibi"),
    *(_rest((1, 20, 9, 3, 41), encoding) for encoding in cases.TERMS),
    _rest((2, 130, 70, 2, 64), "none"),
  ],
)
def test_the_same_weights_are_dropped_as_in_plain_attention(sizes, encoding):
  arrays = cases.arguments(*sizes, encoding=encoding)
  dropout = cases.dropout(arrays, 0.3)
  actual, expected = (
    cases.value_and_gradients(
      functools.partial(function, dropout=dropout), arrays
    )
    for function in (_dropping, attention.relative_attention)
  )
  cases.assert_close(actual, expected)
  whole = cases.value_and_gradients(_plain, arrays)
  assert np.abs(whole[0] - expected[0]).max() > 0.1


PUBLISHED = (1, 20, 9, 3, 41)  # The width of the published base model.
TWO_BLOCKS = (2, 130, 70, 2, 64)  # Of queries, both padded.
MORE_SIZES = (
  *((2, 12, 0, 2, 4), (2, 1, 5, 2, 4), (1, 17, 128, 4, 64)),
  *((1, 16, 16, 1, 128), (1, 5, 6, 1, 130)),
)


@pytest.mark.parametrize(
  ("sizes", "encoding"),
  [
    ((2, 3, 12, 2, 4), "relative"),  # As in the conformance suite.
    (PUBLISHED, "relative"),
    (TWO_BLOCKS, "relative"),
    ((2, 3, 12, 2, 4), "shaw"),
    (TWO_BLOCKS, "alibi"),
    ((2, 3, 12, 2, 4), "none"),
    *(_rest(sizes, "relative") for sizes in MORE_SIZES),
    *(_rest(sizes, "alibi") for sizes in (*MORE_SIZES, PUBLISHED)),
    *(_rest(TWO_BLOCKS, encoding) for encoding in ("shaw", "none")),
  ],
)
def test_values_and_gradients_are_those_of_plain_attention(sizes, encoding):
  _assert_equal(cases.arguments(*sizes, encoding=encoding))


@hypothesis.given(
  lanes=strategies.integers(1, 3),
  queries=strategies.integers(1, 33),
  remembered=strategies.integers(0, 140),
  heads=strategies.integers(1, 3),
  width=strategies.sampled_from([8, 32, 33, 64]),
  encoding=strategies.sampled_from([*cases.TERMS]),
)
@hypothesis.settings(max_examples=3)
def test_any_sizes_will_do(lanes, queries, remembered, heads, width, encoding):
  sizes = (lanes, queries, remembered, heads, width)
  _assert_equal(cases.arguments(*sizes, encoding=encoding))


@pytest.mark.parametrize(
  "encoding", ["relative", "alibi", _rest("shaw"), _rest("none")]
)
def test_long_contexts_are_read_in_tiles_and_unseen_tiles_are_not(
  encoding, monkeypatch
):
  monkeypatch.setattr(tiling, "KEY_BLOCK", 128)
  arrays = cases.arguments(2, 20, 250, 2, 64, encoding=encoding)
  position = jnp.arange(250, 270)
  # The first lane sees nothing of the first tile, the second lane all.
  arrays["reach"] = jnp.stack([position - 128, position])
  _assert_equal(arrays)
  poisoned = dict(arrays)
  for name in "key", "value":
    poisoned[name] = arrays[name].at[0, :128].set(jnp.nan)
  values, gradients = cases.value_and_gradients(_fused, poisoned)
  expected, expected_gradients = cases.value_and_gradients(_fused, arrays)
  np.testing.assert_array_equal(values, expected)
  jax.tree.map(np.testing.assert_array_equal, gradients, expected_gradients)


@pytest.mark.parametrize("encoding", ["relative", "alibi"])
def test_what_is_out_of_reach_cannot_be_felt(encoding):
  arrays = cases.arguments(2, 3, 12, 2, 4, encoding=encoding)
  arrays["reach"] = jnp.array([[1, 2, 3], [0, 1, 2]])
  stale = dict(arrays)
  stale["key"] = arrays["key"].at[:, :11].set(1e18)
  stale["value"] = arrays["value"].at[:, :11].set(1e30)
  clean, gradients = cases.value_and_gradients(_fused, arrays)
  same, same_gradients = cases.value_and_gradients(_fused, stale)
  np.testing.assert_array_equal(same, clean)
  jax.tree.map(np.testing.assert_array_equal, same_gradients, gradients)


def test_large_scores_stay_finite():
  arrays = cases.arguments(2, 3, 12, 2, 4)
  arrays["query"] *= 1e6
  values, gradients = cases.value_and_gradients(_fused, arrays)
  for leaf in jax.tree.leaves((values, gradients)):
    assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("encoding", ["relative", "alibi"])
def test_bfloat16_stays_within_its_rounding(encoding):
  """A relative 2^-8 for each of a few roundings; no worse than plain."""
  sizes = (2, 20, 30, 2, 64)
  arrays = cases.arguments(*sizes, encoding=encoding, dtype=jnp.bfloat16)
  exact = cases.value_and_gradients(_plain, cases.widened(arrays))
  actual = cases.value_and_gradients(_fused, arrays)
  cases.assert_close(actual, exact, tolerance=0.03)
  assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {
    jnp.dtype(jnp.bfloat16)
  }


@pytest.mark.parametrize(("rows", "shift"), [(16, 0), (16, 241), (8, 249)])
def test_interpreted_rolls_are_those_of_the_hardware(rows, shift):
  values = jnp.arange(rows * 256, dtype=jnp.float32).reshape(rows, 256)
  roll = jax.jit(tiles.roll_rows, static_argnames=("shift", "interpret"))
  np.testing.assert_array_equal(
    roll(values, shift=shift, interpret=True),
    roll(values, shift=shift, interpret=False),
  )


def test_upside_down_reverses_rows():
  values = jnp.arange(32 * 128, dtype=jnp.float32).reshape(32, 128)
  np.testing.assert_array_equal(tiles.upside_down(values), values[::-1])


@pytest.mark.parametrize("queries", [1, 16, 100, 128, 200, 1100])
@pytest.mark.parametrize("remembered", [0, 7, 384, 3800])
def test_tiles_are_aligned_and_cover_what_can_be_seen(queries, remembered):
  keys = queries + remembered
  cut = tiling.make_tiling(
    query_len=queries, key_len=keys, num_heads=4, head_dim=64
  )
  for start in cut.query_starts():
    end = 0
    for tile in cut.tiles(start):
      assert tile.keys == slice(end, end + tile.num_keys)
      end += tile.num_keys
      for size in tile.num_keys, tile.window.start, tile.window_len:
        assert size % 128 == 0
      assert tile.window.start + tile.window_len == tile.window.stop
      assert tile.window.stop <= cut.position_len
    assert end >= min(remembered + start + cut.query_block, keys)
