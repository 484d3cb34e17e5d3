"""Attention in XLA and in the fused kernel, interpreted: the same function."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from tests.model.kernels import cases


def _rest(*values):
  return pytest.param(*values, marks=pytest.mark.rest)


# Lanes, queries, remembered, heads, head width.
SMALL = (2, 3, 12, 2, 4)
PUBLISHED = (1, 20, 9, 3, 41)  # The width of the published base model.
# The queries need a second block, which has two of them.
TWO_BLOCKS = (2, 130, 70, 2, 64)
MORE_SIZES = (
  *((2, 1, 0, 2, 4), (2, 12, 0, 2, 4), (2, 1, 5, 2, 4), (1, 17, 128, 4, 64)),
  *((1, 16, 16, 1, 128), (1, 5, 6, 1, 130)),
)


@pytest.mark.some(8)
@pytest.mark.parametrize("form", cases.FORMS)
@pytest.mark.parametrize(
  ("sizes", "terms", "rate"),
  [
    *((SMALL, terms, 0.4) for terms in cases.TERMS),
    (SMALL, "biased keys", 0.0),
    (PUBLISHED, "biased keys", 0.0),
    (TWO_BLOCKS, "biased keys", 0.3),
    (TWO_BLOCKS, "slopes", 0.0),
    *(_rest(sizes, "biased keys", 0.0) for sizes in MORE_SIZES),
    *(_rest(sizes, "slopes", 0.0) for sizes in (*MORE_SIZES, PUBLISHED)),
    *(_rest(PUBLISHED, terms, 0.3) for terms in cases.TERMS),
    *(_rest(TWO_BLOCKS, terms, 0.3) for terms in ("keys", "none")),
  ],
)
def test_values_and_gradients_are_those_of_the_definition(
  form, sizes, terms, rate
):
  arrays = cases.arguments(*sizes, terms=terms)
  dropout = cases.dropout(arrays, rate) if rate else None
  expected = cases.defined_value_and_gradients(arrays, dropout)
  actual = cases.value_and_gradients(form, arrays, dropout)
  cases.assert_close(actual, expected)
  if rate:
    whole, _ = cases.defined_value_and_gradients(arrays)
    assert np.abs(whole - expected[0]).max() > 0.1


@pytest.mark.rest
@pytest.mark.parametrize("form", cases.FORMS)
@hypothesis.given(
  lanes=strategies.integers(1, 3),
  queries=strategies.integers(1, 33),
  remembered=strategies.integers(0, 140),
  heads=strategies.integers(1, 3),
  width=strategies.sampled_from([8, 32, 33, 64]),
  terms=strategies.sampled_from([*cases.TERMS]),
)
@hypothesis.settings(max_examples=3)
def test_any_sizes_will_do(
  form, lanes, queries, remembered, heads, width, terms
):
  sizes = (lanes, queries, remembered, heads, width)
  arrays = cases.arguments(*sizes, terms=terms)
  cases.assert_close(
    cases.value_and_gradients(form, arrays),
    cases.defined_value_and_gradients(arrays),
  )


@pytest.mark.parametrize("form", cases.FORMS)
def test_a_block_of_queries_does_not_read_later_keys(form):
  """However they are masked, 0 times NaN is NaN."""
  arrays = cases.arguments(1, 256, 0, 1, 8)
  for name in "key", "value":
    arrays[name] = arrays[name].at[:, 128:].set(jnp.nan)
  values = cases.values(form, arrays)
  assert np.all(np.isfinite(values[:, :128]))
  assert np.all(np.isnan(values[:, 128:]))


@pytest.mark.parametrize(
  ("form", "terms"), zip(cases.FORMS, ("biased keys", "slopes"), strict=True)
)
def test_what_is_out_of_reach_cannot_be_felt(form, terms):
  arrays = cases.arguments(*SMALL, terms=terms)
  arrays["reach"] = jnp.array([[1, 2, 3], [0, 1, 2]])
  stale = dict(arrays)
  stale["key"] = arrays["key"].at[:, :11].set(1e18)
  stale["value"] = arrays["value"].at[:, :11].set(1e30)
  clean, gradients = cases.value_and_gradients(form, arrays)
  same, same_gradients = cases.value_and_gradients(form, stale)
  np.testing.assert_array_equal(same, clean)
  jax.tree.map(np.testing.assert_array_equal, same_gradients, gradients)


@pytest.mark.parametrize("form", cases.FORMS)
def test_large_scores_stay_finite(form):
  arrays = cases.arguments(*SMALL)
  arrays["query"] *= 1e6
  for leaf in jax.tree.leaves(cases.value_and_gradients(form, arrays)):
    assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize(
  ("form", "terms"), zip(cases.FORMS, ("biased keys", "slopes"), strict=True)
)
def test_bfloat16_stays_within_its_rounding(form, terms):
  """A relative 2^-8 for each of a few roundings."""
  arrays = cases.arguments(2, 20, 30, 2, 64, terms=terms, dtype=jnp.bfloat16)
  actual = cases.value_and_gradients(form, arrays)
  expected = cases.defined_value_and_gradients(arrays)
  cases.assert_close(actual, expected, tolerance=0.03)
  types = {leaf.dtype for leaf in jax.tree.leaves(actual)}
  assert types == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("form", cases.FORMS)
def test_a_second_forward_pass_can_be_avoided(form):
  """Policies of `model.remat` save what has this name."""
  arrays = cases.arguments(*SMALL)
  attend = functools.partial(cases.attend, form, None)
  assert "attention_output" in str(
    jax.make_jaxpr(lambda x: attend(**x))(arrays)
  )
