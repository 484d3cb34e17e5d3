"""Segments of random lengths together read the whole text in order."""

import collections

import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams

LENGTHS = segment_lengths.ListedLengths((7, 7, 5, 2), 3, 11)


def test_each_length_occurs_as_often_as_listed_in_changing_order():
  calls = [LENGTHS.at(3 * call) for call in range(40)]
  rounds = [tuple(calls[at : at + 4]) for at in range(0, 40, 4)]
  for turns in rounds:
    assert collections.Counter(turns) == {7: 2, 5: 1, 2: 1}
  assert len(set(rounds)) > 3
  assert LENGTHS.mean == 21 / 4


def test_a_call_has_one_length_and_seeds_differ_in_order():
  for call in range(20):
    assert (
      len({LENGTHS.at(step) for step in range(3 * call, 3 * call + 3)}) == 1
    )
  other = segment_lengths.ListedLengths((7, 7, 5, 2), 3, 12)
  steps = range(0, 60, 3)
  assert [other.at(step) for step in steps] != [LENGTHS.at(s) for s in steps]


def test_the_tokens_before_a_step_are_the_sum_of_the_lengths_before_it():
  total = 0
  for step in range(100):
    assert LENGTHS.tokens_before(step) == total
    total += LENGTHS.at(step)


def test_drawn_lengths_have_the_published_distribution():
  lengths = segment_lengths.DrawnLengths(70, 5.0, 3)
  drawn = np.array([lengths.at(step) for step in range(20_000)])
  assert lengths.longest == 85
  assert 5 <= drawn.min() <= drawn.max() <= 85
  short = drawn < 52
  # Binomial and normal errors of 20,000 draws, four times over; lengths are
  # rounded down, by half a token on average.
  assert short.mean() == pytest.approx(0.05, abs=4 * 0.0016)
  assert drawn[~short].mean() == pytest.approx(69.5, abs=4 * 0.04)
  assert drawn[short].mean() == pytest.approx(34.5, abs=4 * 0.16)
  assert drawn[~short].std() == pytest.approx(5, abs=0.2)
  assert lengths.mean == pytest.approx(drawn.mean(), abs=0.75)
  other = segment_lengths.DrawnLengths(70, 5.0, 4)
  assert [other.at(step) for step in range(9)] != drawn[:9].tolist()


def test_tokens_before_a_step_are_the_sum_of_drawn_lengths():
  lengths, total = segment_lengths.DrawnLengths(9, 2.0, 0), 0
  for step in range(9000):  # Beyond two blocks of draws.
    if step % 100 == 0 or step % 4096 < 3:
      assert lengths.tokens_before(step) == total
    total += lengths.at(step)


def test_padded_segments_have_weight_on_every_token_once():
  lengths = segment_lengths.DrawnLengths(7, 2.0, 0)
  source = stream(lengths)
  seen = [[], []]
  for step in range(0, 40, 4):
    read = source.read(step, 4, slice(None))
    assert read.targets.shape == (4, 2, lengths.longest)
    expected = [lengths.at(step + index) for index in range(4)]
    assert read.weights.sum(axis=2).tolist() == [[n, n] for n in expected]
    assert source.num_tokens(step, 4) == read.weights.sum()
    for index in range(4):
      for lane in range(2):
        chosen = read.weights[index, lane] > 0
        assert chosen[: expected[index]].all()  # Padding is at the end.
        seen[lane] += read.inputs[index, lane][chosen].tolist()
  for lane in range(2):
    first = lane * (96 // 2)
    assert seen[lane] == [(first + i) % 96 for i in range(len(seen[lane]))]


def stream(lengths):
  return streams.TrainStream(
    corpus.positions(97),
    num_lanes=2,
    segment_len=7,
    resets="wrap",
    rotate=False,
    seed=0,
    lengths=lengths,
  )


def test_lanes_read_every_token_in_order_for_any_lengths():
  calls = [
    stream(LENGTHS).read(step, 3, slice(None)) for step in range(0, 60, 3)
  ]
  assert {call.inputs.shape[2] for call in calls} == {2, 5, 7}
  for name in ("inputs", "targets", "resets"):
    # Segments of a call follow each other, [3, 2, T] to [2, 3 T].
    rows = [np.concatenate(list(getattr(call, name)), axis=1) for call in calls]
    lanes = np.concatenate(rows, axis=1)
    # The same tokens as with one length.
    plain = getattr(stream(None).read(0, 50, slice(None)), name)
    plain = np.concatenate(list(plain), axis=1)
    np.testing.assert_array_equal(lanes, plain[:, : lanes.shape[1]])


def test_the_longest_segment_must_fit_into_a_lane():
  with pytest.raises(errors.UserError, match="one segment of 60 in each of 2"):
    stream(segment_lengths.ListedLengths((7, 60), 1, 0))
