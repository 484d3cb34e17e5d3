"""Streams against plain Python references."""

import collections
import dataclasses
import functools
import math

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from tests import corpus
from tests import tiny
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.data import token_file

ALL = slice(None)
DOCUMENTS = (0, 3, 4, 17, 30)


def stream(num_tokens, lanes, length, *, resets="wrap"):
  return streams.TrainStream(
    corpus.positions(num_tokens, documents=DOCUMENTS),
    num_lanes=lanes,
    segment_len=length,
    resets=resets,
  )


def eval_stream(num_tokens, lanes, length, warmup, *, resets="wrap"):
  file = corpus.positions(num_tokens, documents=DOCUMENTS)
  return streams.EvalStream(file, lanes, length, warmup, resets)


@pytest.mark.parametrize(
  ("rule", "starts"),
  [("documents", DOCUMENTS), ("wrap", (0,)), ("never", ())],
)
def test_lanes_read_on_without_end_and_wrap(rule, starts):
  segments = stream(42, 3, 4, resets=rule).read(0, 50, ALL)
  pairs = 41
  for lane in range(3):
    expected = [(lane * (pairs // 3) + i) % pairs for i in range(50 * 4)]
    assert segments.inputs[:, lane].ravel().tolist() == expected
    following = [position + 1 for position in expected]
    assert segments.targets[:, lane].ravel().tolist() == following
    resets = [position in starts for position in expected]
    assert segments.resets[:, lane].ravel().tolist() == resets
  assert segments.weights is None  # Every target counts.
  assert np.asarray(segments.loss_weights()).min() == 1
  assert segments.inputs.dtype == segments.targets.dtype == np.int32


def test_a_segment_is_a_function_of_its_step():
  source = stream(100, 4, 5)
  whole = source.read(0, 40, ALL)
  for step, count in [(0, 1), (7, 3), (12, 9), (39, 1)]:
    jumped = stream(100, 4, 5).read(step, count, ALL)
    assert jumped.weights is None
    for part, rest in zip(jumped[:3], whole[:3], strict=True):
      np.testing.assert_array_equal(part, rest[step : step + count])


def test_an_epoch_that_divides_reads_every_pair_once():
  source = stream(61, 4, 5)
  for epoch in range(3):
    inputs = source.read(epoch * 3, 3, ALL).inputs
    assert sorted(inputs.ravel().tolist()) == list(range(60))


@hypothesis.given(
  pairs=st.integers(1, 60), lanes=st.integers(1, 6), length=st.integers(1, 9)
)
def test_no_pair_is_read_more_often_than_another(pairs, lanes, length):
  hypothesis.assume(pairs // lanes >= length)
  inputs = stream(pairs + 1, lanes, length).read(0, pairs, ALL).inputs
  counts = collections.Counter(inputs.ravel().tolist())
  assert counts == dict.fromkeys(range(pairs), lanes * length)


@pytest.mark.parametrize("lanes", [1, 3])
def test_context_is_the_text_before_a_segment(lanes):
  """With the same targets, and nothing from before the start of the text."""
  file = corpus.positions(42, documents=DOCUMENTS)
  sources = [
    [
      streams.TrainStream(file, lanes, 4, "wrap", context_len=length),
      streams.EvalStream(file, lanes, 4, 0, "wrap", context_len=length),
    ]
    for length in (0, 6)
  ]
  for plain, source in zip(*sources, strict=True):
    count = getattr(plain, "num_steps", 30)
    expected, found = (one.read(0, count, ALL) for one in (plain, source))
    np.testing.assert_array_equal(found.targets, expected.targets)
    np.testing.assert_array_equal(found.inputs[:, :, 6:], expected.inputs)
    assert found.resets.shape == found.inputs.shape == (count, lanes, 10)
    if expected.weights is not None:
      np.testing.assert_array_equal(found.weights, expected.weights)
    counts = np.asarray(found.loss_weights())[:, :, 0] > 0
    for row, starts in zip(
      found.inputs[counts], found.resets[counts], strict=True
    ):
      first = max(np.flatnonzero(starts[:7]), default=0)
      text = row[first:7]
      assert text.tolist() == list(range(text[0], text[0] + len(text)))


def test_context_may_wrap_around_a_short_text_more_than_once():
  file = corpus.positions(11)
  source = streams.TrainStream(file, 1, 8, "wrap", context_len=6)
  found = source.read(3, 1, ALL)
  assert np.count_nonzero(found.inputs == 0) == 2
  np.testing.assert_array_equal(found.resets, found.inputs == 0)


ANSWERS = (1, 2, 9, 25, 40, 41)


@pytest.mark.parametrize("context_len", [0, 5])
def test_only_answers_have_a_weight(context_len):
  """In training every time that they are read, and once in evaluation."""
  file = corpus.positions(42, documents=DOCUMENTS)
  answers = token_file.Answers(np.array(ANSWERS), np.ones(6, int))
  file = dataclasses.replace(file, answers=answers)
  train, valid = (
    kind(file, 3, 4, *more, "wrap", context_len=context_len, targets="answers")
    for kind, more in ((streams.TrainStream, ()), (streams.EvalStream, (7,)))
  )
  segments = train.read(0, 30, ALL)
  is_answer = np.isin(segments.targets, ANSWERS)
  np.testing.assert_array_equal(segments.weights, is_answer)
  assert 0 < is_answer.mean() < 0.3
  segments = valid.read(0, valid.num_steps + 2, ALL)
  scored = segments.targets[segments.weights == 1]
  assert sorted(scored.tolist()) == [*ANSWERS]
  assert segments.weights.sum() == len(ANSWERS)


def test_padding_has_no_weight_where_only_answers_count():
  file = corpus.positions(42)
  answers = token_file.Answers(np.array(ANSWERS), np.ones(6, int))
  file = dataclasses.replace(file, answers=answers)
  lengths = segment_lengths.DrawnLengths(5, 2.0, 0)
  make = functools.partial(
    streams.TrainStream, file, 3, 5, "wrap", lengths=lengths
  )
  padded = make().read(0, 8, ALL).weights
  both = make(targets="answers").read(0, 8, ALL)
  asked = np.isin(both.targets, ANSWERS)
  assert padded is not None
  assert (asked & (padded == 0)).any()
  np.testing.assert_array_equal(both.weights, padded * asked)


def test_a_lane_that_warms_up_before_the_text_reads_none():
  source = eval_stream(42, 2, 4, 10)
  assert source.num_steps > 3
  is_text = source.is_text(0, source.num_steps)
  position = np.arange(4 * source.num_steps) - 12  # In three whole segments.
  expected = (position >= 0) & (position < 41)
  assert is_text[:, 0].ravel().tolist() == expected.tolist()


@pytest.mark.parametrize(
  ("values", "rule"),
  [
    ({"data.reset_at_documents": True}, "documents"),
    ({}, "wrap"),
    ({"model.memory_start": "zeros"}, "never"),
  ],
)
def test_resets_follow_the_configuration(values, rule):
  config = load.from_config_dict(tiny.config_dict(**values))
  assert streams.reset_rule(config.data, config.model) == rule


def test_text_without_answers_is_refused():
  with pytest.raises(errors.UserError, match="needs a synthetic task, whose"):
    streams.TrainStream(corpus.positions(42), 3, 4, "wrap", targets="answers")


@hypothesis.given(
  pairs=st.integers(1, 70),
  lanes=st.integers(1, 7),
  length=st.integers(1, 9),
  warmup=st.integers(0, 20),
)
def test_evaluation_counts_every_pair_once(pairs, lanes, length, warmup):
  source = eval_stream(pairs + 1, lanes, length, warmup)
  segments = source.read(0, source.num_steps + 3, ALL)
  assert segments.weights[source.num_steps :].sum() == 0
  counted = segments.inputs[segments.weights == 1]
  assert sorted(counted.tolist()) == list(range(pairs))
  assert set(np.unique(segments.weights)) <= {0, 1}
  np.testing.assert_array_equal(segments.targets, segments.inputs + 1)
  # No step is read in vain.
  num_read = lanes * length * (source.num_steps - math.ceil(warmup / length))
  assert pairs <= num_read < pairs + lanes * length


@hypothesis.given(
  pairs=st.integers(1, 70),
  lanes=st.integers(1, 7),
  length=st.integers(1, 9),
  warmup=st.integers(0, 20),
)
def test_nothing_counted_has_padding_before_it(pairs, lanes, length, warmup):
  source = eval_stream(pairs + 1, lanes, length, warmup)
  segments = source.read(0, source.num_steps, ALL)
  for lane in range(lanes):
    inputs = segments.inputs[:, lane].ravel().tolist()
    resets = segments.resets[:, lane].ravel().tolist()
    for i in np.flatnonzero(segments.weights[:, lane].ravel()):
      start = max((k for k in range(i + 1) if resets[k]), default=0)
      past = inputs[start : i + 1]
      assert past == list(range(past[0], past[-1] + 1))
      assert len(past) > min(warmup, inputs[i])


def test_evaluation_cuts_segments_at_the_same_tokens_for_any_batch():
  for lanes in (1, 2, 3, 7):
    source = eval_stream(60, lanes, 4, 6)
    segments = source.read(0, source.num_steps, ALL)
    first = segments.inputs[:, :, 0][segments.weights[:, :, 0] == 1]
    assert sorted(first.tolist()) == list(range(0, 59, 4))


@pytest.mark.parametrize("rule", ["wrap", "documents", "never"])
def test_evaluation_resets_where_the_text_starts(rule):
  source = eval_stream(42, 4, 4, 9, resets=rule)
  segments = source.read(0, source.num_steps, ALL)
  read = segments.resets & (segments.weights == 1)
  starts = {"wrap": {0}, "never": {0}, "documents": set(DOCUMENTS)}[rule]
  assert set(segments.inputs[read].tolist()) == starts
  if rule == "never":  # Attended zeros cannot start inside a segment.
    assert not segments.resets[:, :, 1:].any()


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_parts_of_the_lanes_are_the_batch(kind):
  source = stream(90, 4, 5, resets="documents")
  if kind == "eval":
    source = eval_stream(90, 4, 5, 7)
  whole = source.read(3, 6, ALL)
  # The last device has empty lanes alone.
  cuts = [(0, 1), (1, 3), (3, 4), (4, 6)]
  parts = [source.read(3, 6, slice(*ends)) for ends in cuts]
  assert len(jax.tree.leaves(whole)) == (3 if kind == "train" else 4)
  joined = jax.tree.map(lambda *arrays: np.concatenate(arrays, axis=1), *parts)
  jax.tree.map(np.testing.assert_array_equal, joined, whole)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_empty_lanes_follow_and_have_no_weight(kind):
  source = stream(90, 4, 5)
  if kind == "eval":
    source = eval_stream(90, 4, 5, 7)
  whole = source.read(3, 6, ALL)
  padded = segment.with_empty_lanes(whole, 7)
  np.testing.assert_array_equal(padded.weights[:, :4], whole.loss_weights())
  for part, expected in zip(padded[:3], whole[:3], strict=True):
    np.testing.assert_array_equal(part[:, :4], expected)
  for part in padded:
    assert part.shape == (6, 7, 5)
    assert not part[:, 4:].any()


def test_device_segments_are_what_the_stream_reads(tmp_path):
  config = corpus.config(corpus.write(tmp_path))
  mesh = mesh_lib.make_mesh(config.mesh)
  source = stream(90, 4, 5)
  segments = streams.device_segments(source, 3, 2, mesh_lib.segments(mesh))
  whole = source.read(3, 2, ALL)
  assert segments.weights is None
  assert whole.weights is None
  for part, expected in zip(segments[:3], whole[:3], strict=True):
    assert isinstance(part, jax.Array)
    assert part.sharding.spec == PartitionSpec(None, ("data", "fsdp"))
    np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(("parts", "lanes"), [(1, 4), (3, 6)])
def test_shapes_of_segments_are_known_before_they_are_read(
  tmp_path, parts, lanes
):
  lengths = {"train.context_len": 2, "train.mem_len": 0}
  config = corpus.config(corpus.write(tmp_path), **lengths)
  mesh = mesh_lib.make_mesh(config.mesh)
  source = dataclasses.replace(stream(90, 4, 8), context_len=2)
  known = segment.abstract_segments(
    mesh, 5, config.train, 8, parts=parts, has_weights=False
  )
  read = streams.device_segments(
    source, 0, 5, mesh_lib.segments(mesh), parts=parts
  )
  assert read.targets.shape == (5, lanes, 8)
  assert (read.weights is None) == (parts == 1)

  def assert_alike(one, other):
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.sharding == other.sharding

  jax.tree.map(assert_alike, known, read)


def test_too_short_a_split_says_what_would_fit():
  with pytest.raises(errors.UserError, match="at most 5 lanes"):
    stream(41, 6, 8)
  assert stream(41, 5, 8).read(0, 1, ALL).inputs.shape == (1, 5, 8)


def test_the_vocabulary_size_of_the_config_must_be_that_of_the_data(tmp_path):
  corpus.write(tmp_path)
  config = corpus.config(str(tmp_path))
  assert config.model.vocab_size == len(corpus.SYMBOLS)
  with pytest.raises(errors.UserError, match=r"vocab_size=22.* 23 symbols"):
    corpus.config(str(tmp_path), **{"model.vocab_size": 22})
