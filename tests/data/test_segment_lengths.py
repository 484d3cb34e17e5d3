"""Segments of random lengths together read the whole text in order."""

import numpy as np
import pytest

from tests import corpus
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams


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
  assert segment_lengths.DrawnLengths(70, 1.1, 3).longest == 74
  other = segment_lengths.DrawnLengths(70, 5.0, 4)
  assert [other.at(step) for step in range(9)] != drawn[:9].tolist()


def test_no_length_is_below_five():
  lengths = segment_lengths.DrawnLengths(6, 2.0, 0)
  assert min(lengths.at(step) for step in range(200)) == 5
  lengths = segment_lengths.DrawnLengths(2, 0.5, 0)
  assert {lengths.at(step) for step in range(200)} == {lengths.longest} == {5}


def test_tokens_before_a_step_are_the_sum_of_lengths():
  assert segment_lengths.FixedLength(7).tokens_before(3) == 21
  lengths, total = segment_lengths.DrawnLengths(9, 2.0, 0), 0
  for step in range(9000):  # Beyond two blocks of draws.
    if step % 100 == 0 or step % 4096 < 3:
      assert lengths.tokens_before(step) == total
    total += lengths.at(step)


@pytest.mark.parametrize(("std", "share"), [(0.0, 1), (2.0, 0.975)])
def test_an_update_reads_its_segments_in_every_lane(std, share):
  values = {"batch_size": 5, "gradient_segments": 2, "segment_len": 8}
  values |= {"segment_len_std": std, "segments_per_call": 2, "mem_len": 0}
  config = load.from_config_dict(
    tiny.config_dict(**{f"train.{name}": values[name] for name in values})
  )
  assert segment_lengths.tokens_per_update(config.train) == 5 * 2 * 8 * share


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
    lengths=lengths,
  )


def test_the_longest_segment_must_fit_into_a_lane():
  with pytest.raises(errors.UserError, match="one segment of 67 in each of 2"):
    stream(segment_lengths.DrawnLengths(7, 20.0, 0))
