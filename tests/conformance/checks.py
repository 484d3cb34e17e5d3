"""The checks: each takes an implementation and raises where it is wrong.

See `adapters` for what an implementation is. Where two ways of computing the
same are compared, they round differently in float32, which `ROUNDINGS` allows
for. Where the same compiled step must not see a change at all, results are
compared exactly.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tests import comparison

LANES = 2
LENGTH = 12  # Tokens in a lane's text.
SEGMENT = 3
ROUNDINGS = 30  # See `comparison`.


def segmented_equals_one_pass(build):
  adapter = build(mem_len=LENGTH, same_length=False)
  whole = _read(adapter, _text(adapter), cuts=[LENGTH])
  parts = _read(adapter, _text(adapter), cuts=[SEGMENT] * 4)
  _assert_close(parts, whole)


def same_length_does_not_depend_on_the_cuts(build):
  adapter = build(mem_len=5, same_length=True)
  whole = _read(adapter, _text(adapter), cuts=[LENGTH])
  _assert_close(_read(adapter, _text(adapter), cuts=[SEGMENT] * 4), whole)
  _assert_close(_read(adapter, _text(adapter), cuts=[1] * LENGTH), whole)
  mixed = [1, SEGMENT, SEGMENT, 1, 1, SEGMENT]
  _assert_close(_read(adapter, _text(adapter), cuts=mixed), whole)


def same_length_limits_the_window(build):
  """Two layers reach twice as far as one window, and no further."""
  adapter = build(mem_len=5, same_length=True)
  text = _text(adapter)
  before = _read(adapter, text, cuts=[SEGMENT] * 4)
  after = _read(adapter, _change(adapter, text, 0), cuts=[SEGMENT] * 4)
  farthest = 2 * 5
  _assert_same(after[:, farthest + 1 :], before[:, farthest + 1 :])
  _assert_differ(after[:, 4], before[:, 4])


def without_memory_same_length_is_off(build):
  """A token would see itself alone; it sees its segment."""
  text = _text(build(mem_len=0, same_length=True))
  cuts = [SEGMENT] * 4
  on = _read(build(mem_len=0, same_length=True), text, cuts)
  _assert_close(on, _read(build(mem_len=0, same_length=False), text, cuts))


def without_memory_segments_are_independent(build):
  adapter = build(mem_len=0, same_length=False)
  text = _text(adapter)
  parts = np.split(text, 4, axis=1)
  alone = [_read(adapter, part, cuts=[SEGMENT]) for part in parts]
  joint = _read(adapter, text, cuts=[SEGMENT] * 4)
  # Not to the bit: a ring has them in other slots.
  _assert_close(joint, np.concatenate(alone, axis=1))


def without_memory_steps_complete_a_segment(build):
  """Whichever steps a segment is read in; the next one starts afresh."""
  adapter = build(mem_len=0, same_length=False)
  text = _text(adapter)
  whole = _read(adapter, text, cuts=[SEGMENT] * 4)
  _assert_close(_read(adapter, text, cuts=[1] * LENGTH), whole)
  _assert_close(_read(adapter, text, cuts=[SEGMENT - 1, 1] * 4), whole)


def steps_complete_a_segment(build):
  """With memory as without: what is done once a segment is done once."""
  adapter = build(mem_len=LENGTH, same_length=False)
  text = _text(adapter)
  whole = _read(adapter, text, cuts=[SEGMENT] * 4)
  _assert_close(_read(adapter, text, cuts=[1] * LENGTH), whole)
  _assert_close(_read(adapter, text, cuts=[SEGMENT - 1, 1] * 4), whole)


def longer_memory_than_text_makes_no_difference(build):
  text = _text(build(mem_len=LENGTH, same_length=False))
  enough = build(mem_len=LENGTH, same_length=False)
  too_much = build(mem_len=LENGTH + 8, same_length=False)
  cuts = [SEGMENT] * 4
  _assert_close(_read(too_much, text, cuts), _read(enough, text, cuts))


def short_memory_makes_a_difference(build):
  """Else the equalities above would say nothing about memory."""
  text = _text(build(mem_len=LENGTH, same_length=False))
  none = build(mem_len=0, same_length=False)
  enough = build(mem_len=LENGTH, same_length=False)
  cuts = [SEGMENT] * 4
  without, with_memory = _read(none, text, cuts), _read(enough, text, cuts)
  _assert_differ(without[:, SEGMENT:], with_memory[:, SEGMENT:])


def future_does_not_leak(build):
  """Nor across segments: each token is changed in turn."""
  adapter = build(mem_len=LENGTH, same_length=False)
  text, cuts = _text(adapter), [SEGMENT] * 4
  before = _read(adapter, text, cuts)
  for position in range(LENGTH):
    after = _read(adapter, _change(adapter, text, position), cuts)
    _assert_same(after[:, :position], before[:, :position])
    for later in range(position, LENGTH):
      _assert_differ(after[:, later], before[:, later])


def lanes_are_independent(build):
  adapter = build(mem_len=LENGTH, same_length=False)
  text, cuts = _text(adapter), [SEGMENT] * 4
  before = _read(adapter, text, cuts)
  other = text.copy()
  other[1] = _change(adapter, text, slice(None))[1]
  after = _read(adapter, other, cuts)
  _assert_same(after[0], before[0])
  _assert_differ(after[1], before[1])
  _assert_close(_read(adapter, text[::-1], cuts)[::-1], before)


def no_gradient_into_memory(build):
  """Memory counts as a constant, whoever computed it."""
  adapter = build(mem_len=LENGTH, same_length=False)
  params, text = adapter.init(0), _text(adapter)
  first, second = text[:, :SEGMENT], text[:, SEGMENT : 2 * SEGMENT]
  resets = np.zeros(first.shape, bool)

  def loss(params, memory):
    return jnp.mean(adapter.step(params, second, memory, resets)[0][..., 0])

  def loss_of_both(params):
    _, memory = adapter.step(params, first, adapter.fresh(LANES), resets)
    return loss(params, memory)

  _, memory = adapter.step(params, first, adapter.fresh(LANES), resets)
  expected = jax.grad(loss)(params, memory)
  actual = jax.grad(loss_of_both)(params)
  assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 0.01
  _assert_close(actual, expected)


def gradient_through_memory_is_that_of_one_pass(build):
  """The loss of a segment teaches what the one before it hands on."""
  adapter = build(mem_len=LENGTH, same_length=False)
  text = jnp.asarray(_text(adapter)[:, : 2 * SEGMENT])

  def loss(params, cuts):
    memory, begin = adapter.fresh(LANES), 0
    for length in cuts:
      part = text[:, begin : begin + length]
      resets = jnp.zeros(part.shape, bool)
      log_probs, memory = adapter.step(params, part, memory, resets)
      begin += length
    return jnp.mean(log_probs[:, -SEGMENT:, 0])

  params = adapter.init(0)
  expected = jax.grad(loss)(params, [2 * SEGMENT])
  actual = jax.grad(loss)(params, [SEGMENT] * 2)
  _assert_close(actual, expected)


def gradient_through_memory_is_that_of_differences(build):
  """The same where one pass reads something else than the segments."""
  adapter = build(mem_len=LENGTH, same_length=False)
  start = adapter.init(0)
  # What is written after the first segment is handed on by the second.
  segments = np.split(_text(adapter)[:, : 3 * SEGMENT], 3, axis=1)
  resets = np.zeros(segments[0].shape, bool)
  generator = np.random.default_rng(2)
  direction = jax.tree.map(
    lambda leaf: generator.normal(size=leaf.shape).astype(np.float32), start
  )

  def moved(size):
    return jax.tree.map(lambda leaf, by: leaf + size * by, start, direction)

  def memory_of(size):
    params = moved(size)
    memory = adapter.fresh(LANES)
    for segment in segments[:-1]:
      _, memory = adapter.step(params, segment, memory, resets)
    return memory

  def loss(size, memory):
    params = moved(size)
    log_probs, _ = adapter.step(params, segments[-1], memory, resets)
    return jnp.mean(log_probs[..., 0])

  def loss_of_all(size):
    return loss(size, memory_of(size))

  of_constant = jax.grad(loss)(0.0, memory_of(0.0))
  actual = jax.grad(loss_of_all)(0.0)
  # So small that units keep their signs, and large beside losses' rounding.
  size = 1e-4
  difference = loss_of_all(size) - loss_of_all(-size)
  expected = float(difference) / (2 * size)
  tolerance = 5e-3 * abs(expected)
  assert abs(expected - of_constant) > 10 * tolerance
  assert abs(actual - expected) < tolerance


def reset_of_a_lane_equals_fresh(build):
  """The other lane keeps its memory; later segments forget as well."""
  adapter = build(mem_len=LENGTH, same_length=False)
  text, cuts = _text(adapter), [SEGMENT] * 4
  resets = np.zeros(text.shape, bool)
  resets[1, SEGMENT] = True
  kept = _read(adapter, text, cuts)
  actual = _read(adapter, text, cuts, resets)
  fresh = _read(adapter, text[:, SEGMENT:], cuts[1:])
  _assert_differ(kept[1, SEGMENT:], fresh[1])
  _assert_close(actual[1, SEGMENT:], fresh[1])
  _assert_same(actual[0], kept[0])
  _assert_same(actual[1, :SEGMENT], kept[1, :SEGMENT])


def reset_inside_a_segment_equals_fresh(build):
  """However the text after it is cut."""
  _assert_documents_are_fresh(build, lambda start: [])


def reset_inside_a_segment_equals_its_rest(build):
  """The same where it matters how a text is cut: then the cuts are equal."""
  _assert_documents_are_fresh(build, lambda start: [SEGMENT - start % SEGMENT])


def _assert_documents_are_fresh(build, cuts_before_segments):
  adapter = build(mem_len=LENGTH, same_length=False)
  text = _text(adapter)
  for start in (1, SEGMENT + 2, 2 * SEGMENT + 1):
    resets = np.zeros(text.shape, bool)
    resets[0, start] = True
    actual = _read(adapter, text, [SEGMENT] * 4, resets)
    cuts = cuts_before_segments(start)
    cuts += [SEGMENT] * ((LENGTH - start) // SEGMENT)
    document = slice(start, start + sum(cuts))
    fresh = _read(adapter, text[:, document], cuts)
    _assert_close(actual[0, document], fresh[0])


def old_documents_never_leak(build):
  """However long the memory: four segments and two documents of it."""
  adapter = build(mem_len=LENGTH + 8, same_length=False)
  text, cuts = _text(adapter), [SEGMENT] * 4
  resets = np.zeros(text.shape, bool)
  starts = (0, 4, 5, 2 * SEGMENT, LENGTH)
  resets[:, list(starts[:-1])] = True
  before = _read(adapter, text, cuts, resets)
  for begin, end in itertools.pairwise(starts):
    changed = _change(adapter, text, slice(begin, end))
    after = _read(adapter, changed, cuts, resets)
    _assert_differ(after[:, begin:end], before[:, begin:end])
    _assert_same(after[:, :begin], before[:, :begin])
    _assert_same(after[:, end:], before[:, end:])


def probabilities_sum_to_one(build):
  adapter = build(mem_len=LENGTH, same_length=False)
  log_probs = _read(adapter, _text(adapter), [SEGMENT] * 4)
  assert log_probs.shape == (LANES, LENGTH, adapter.vocab_size)
  sums = np.exp(log_probs.astype(np.float64)).sum(axis=-1)
  np.testing.assert_allclose(sums, 1, atol=1e-5)


ALL = (
  segmented_equals_one_pass,
  longer_memory_than_text_makes_no_difference,
  reset_inside_a_segment_equals_fresh,
  reset_inside_a_segment_equals_its_rest,
  old_documents_never_leak,
  same_length_limits_the_window,
  without_memory_same_length_is_off,
  same_length_does_not_depend_on_the_cuts,
  without_memory_segments_are_independent,
  without_memory_steps_complete_a_segment,
  steps_complete_a_segment,
  short_memory_makes_a_difference,
  future_does_not_leak,
  lanes_are_independent,
  no_gradient_into_memory,
  gradient_through_memory_is_that_of_one_pass,
  gradient_through_memory_is_that_of_differences,
  reset_of_a_lane_equals_fresh,
  probabilities_sum_to_one,
)
# These compare one pass with other cuts.
_ONE_PASS = (
  segmented_equals_one_pass,
  reset_inside_a_segment_equals_fresh,
  gradient_through_memory_is_that_of_one_pass,
)


def applying(adapter) -> list:
  """The checks that have a meaning for an implementation."""
  left_out = []
  # Resets inside a segment, and memory that is longer than its content, have no
  # meaning where an empty memory is attended to.
  if not adapter.masks_empty:
    left_out += [
      *(*_ONE_PASS, longer_memory_than_text_makes_no_difference),
      old_documents_never_leak,
    ]
  # A state reaches back as far as it likes, and further than a window.
  if not adapter.has_attention:
    left_out += [
      same_length_limits_the_window,
      without_memory_same_length_is_off,
    ]
  # One pass sees the text at other places, in layers that otherwise forget it,
  # or before it is compressed.
  has_cuts = adapter.own_positions or adapter.compresses or adapter.writes
  if has_cuts or adapter.unequal:
    left_out += _ONE_PASS
  if has_cuts:
    left_out.append(same_length_does_not_depend_on_the_cuts)
  if adapter.writes:  # Vectors reach further than a window.
    left_out.append(same_length_limits_the_window)
  if adapter.compresses:  # Its window is in positions, and a slot is one.
    left_out.append(same_length_limits_the_window)
  if adapter.gradient != "none":  # The network reads whole segments.
    left_out.append(without_memory_steps_complete_a_segment)
  if adapter.gradient != "none" or not adapter.writes:
    left_out.append(steps_complete_a_segment)
  if adapter.gradient != "stops":
    left_out.append(no_gradient_into_memory)
  if adapter.gradient != "flows":
    left_out.append(gradient_through_memory_is_that_of_one_pass)
  # Where one pass says it, it need not be said in another way.
  is_left_to_differences = (
    gradient_through_memory_is_that_of_one_pass in left_out
    and adapter.gradient == "flows"
    and not adapter.retrieves
  )
  if not is_left_to_differences:
    left_out.append(gradient_through_memory_is_that_of_differences)
  is_left_to_the_rest = (
    reset_inside_a_segment_equals_fresh in left_out
    and adapter.masks_empty
    and adapter.gradient != "none"  # Whole segments are read, as above.
    and not adapter.own_positions
    and not adapter.compresses
  )
  if not is_left_to_the_rest:
    left_out.append(reset_inside_a_segment_equals_its_rest)
  return [check for check in ALL if check not in left_out]


def _text(adapter) -> np.ndarray:
  """Two different lanes of random tokens."""
  generator = np.random.default_rng(1)
  shape = (LANES, LENGTH)
  return generator.integers(adapter.vocab_size, size=shape, dtype=np.int32)


def _change(adapter, text, where) -> np.ndarray:
  """Another token at the given positions of each lane."""
  result = text.copy()
  result[:, where] = (text[:, where] + 1) % adapter.vocab_size
  return result


def _read(adapter, text, cuts, resets=None) -> np.ndarray:
  """Log-probabilities of a text that is read in segments of given lengths."""
  assert sum(cuts) == text.shape[1]
  if resets is None:
    resets = np.zeros(text.shape, bool)
  params, memory = adapter.init(0), adapter.fresh(len(text))
  parts, begin = [], 0
  for length in cuts:
    part = slice(begin, begin + length)
    log_probs, memory = adapter.step(
      params, jnp.asarray(text[:, part]), memory, jnp.asarray(resets[:, part])
    )
    parts.append(np.asarray(log_probs))
    begin += length
  return np.concatenate(parts, axis=1)


def _assert_close(actual, expected):
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def _assert_same(actual, expected):
  np.testing.assert_array_equal(actual, expected)


def _assert_differ(one, other):
  """Somewhere by far more than rounding."""
  assert comparison.difference(one, other) > 100 * ROUNDINGS * (
    comparison.FLOAT32
  )
