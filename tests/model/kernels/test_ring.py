"""Attention over a ring in XLA: whole, and some of its slots at a time."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests.model.kernels import rings
from transformer_xl.model.kernels import ring

TERMS = ("biased keys", "slopes", "added", "none")


@pytest.fixture
def in_parts(monkeypatch):
  """Queries and slots are taken 8 at a time."""
  monkeypatch.setattr(ring, "_MOST_SCORES", 0)
  monkeypatch.setattr(ring, "_SMALLEST_PART", 8)
  monkeypatch.setattr(ring, "_LARGEST_PART", 8)


@pytest.mark.some(2)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("slot", [0, 16, 24])
def test_a_whole_ring_gives_the_definition(terms, slot):
  inputs = rings.arguments(16, 40, terms=terms, slot=slot)
  found = ring.ring_attention(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)


@pytest.mark.some(4)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("slot", [0, 16, 24])
def test_parts_of_a_ring_give_the_definition(terms, slot, in_parts):
  inputs = rings.arguments(16, 40, terms=terms, slot=slot)
  found = ring.attend_in_turn(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)


def test_slots_that_no_query_sees_are_not_read(in_parts):
  inputs = rings.arguments(16, 40, terms="none", slot=8)
  inputs = inputs._replace(reach=jnp.minimum(inputs.reach, 7))
  # Those that are seen are 1 to 23.
  value = inputs.value.at[:, :, 24:].set(np.nan)
  found = ring.attend_in_turn(inputs._replace(value=value))
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)
  assert np.isnan(ring.ring_attention(inputs._replace(value=value))).any()


def test_large_scores_of_a_later_part_stay_finite(in_parts):
  inputs = rings.arguments(16, 40, terms="none", slot=24)
  key = inputs.key * jnp.linspace(1.0, 300.0, 40)[None, None]
  inputs = inputs._replace(key=key)
  found = ring.attend_in_turn(inputs)
  assert np.isfinite(found).all()
  whole = ring.ring_attention(inputs)
  # Scores of some thousands are rounded in float32.
  comparison.assert_close(found, whole, roundings=3000)


@pytest.mark.parametrize("queries", [8, 13])
def test_lengths_without_parts_are_taken_whole(queries, in_parts):
  inputs = rings.arguments(queries, 41, terms="biased keys", slot=20)
  found = ring.attend_in_turn(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)
