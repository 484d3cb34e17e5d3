"""Medians and intervals over seeds, and which of them seeds tell apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies

from transformer_xl.analysis import over_seeds


def test_a_seed_that_jumps_moves_no_median():
  jumped = over_seeds.of([1.0, 0.5, 0.51, 0.49, 0.5])
  assert (jumped.median, jumped.low, jumped.high) == (0.5, 0.49, 1.0)


SEEDS = strategies.lists(strategies.integers(0, 9), min_size=2, max_size=4)


@given(SEEDS, SEEDS)
def test_intervals_overlap_if_a_number_lies_in_both(one, other):
  between = [number / 2 for number in range(19)]
  inside = [
    number
    for number in between
    if min(one) <= number <= max(one) and min(other) <= number <= max(other)
  ]
  found = over_seeds.overlap(over_seeds.of(one), over_seeds.of(other))
  assert found == bool(inside)


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_rows_have_places_by_their_median_whatever_their_order(order):
  rows = [[0.9, 1.0], [0.85, 0.95], [0.1, 0.86], [0.0, 0.05]]
  words = ["1", "2, not told apart from 1", "3, not told apart from 2", "4"]
  found = over_seeds.ranks(
    [over_seeds.of(rows[index]) for index in order], is_higher_better=True
  )
  assert found == [words[index] for index in order]


def test_one_seed_says_nothing_of_another():
  rows = [over_seeds.of(each) for each in ([2.0], [1.0, 3.0], [0.5])]
  found = over_seeds.ranks(rows, is_higher_better=False)
  assert found == ["2", "3", "1"]
