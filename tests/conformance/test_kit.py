"""The public kit finds seeded mistakes, and says where and by how much."""

import numpy as np
import pytest

from tests.conformance import examples
from transformer_xl import conformance
from transformer_xl import errors
from transformer_xl.conformance import finding
from transformer_xl.conformance import kit
from transformer_xl.conformance.checks import cuts
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import lengths
from transformer_xl.conformance.checks import long_texts
from transformer_xl.conformance.checks import numbers
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import resets
from transformer_xl.conformance.checks import sight
from transformer_xl.conformance.checks import state
from transformer_xl.conformance.checks import table

LATER = sight.a_later_token_changes_no_earlier_output
REACHES = sight.every_token_reaches_later_outputs
ONE_PASS = cuts.segments_give_what_one_pass_gives
PARTS = cuts.parts_give_what_segments_give
SAME_LENGTH = cuts.with_same_length_the_cuts_do_not_matter
LANE = resets.a_reset_of_a_lane_is_a_fresh_start
INSIDE = resets.a_reset_inside_a_segment_is_a_fresh_start
FORGOTTEN = resets.forgotten_documents_never_come_back
LONG = long_texts.a_long_text_may_be_cut_anywhere
GROWS = state.memory_does_not_grow
NO_MEMORY_PARTS = lengths.without_memory_parts_complete_a_segment
PADDING = state.padding_is_not_remembered
SHAPES = state.the_memory_keeps_its_shapes_and_types
FLOAT32 = numbers.parameters_are_float32
DIFFERENCES = gradients.the_gradient_is_that_of_differences
NORM = numbers.each_layer_calls_its_norm
FAR = numbers.far_positions_score_as_near_ones
AS_READ = numbers.reading_rounds_no_parameter_of_training
EQUATIONS = outputs.outputs_are_those_of_its_own_equations
GRADIENT = gradients.the_gradient_through_memory_is_that_of_one_pass
OTHERS = outputs.other_ways_of_reading_give_the_same


class Average:
  """A moving average of vectors in NumPy: of another library than JAX."""

  width = 4

  def __init__(self, decay=0.9):
    self.decay = decay

  def init(self, seed):
    return np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)

  def fresh(self, batch_size):
    return np.zeros((batch_size, 4), np.float32)

  def step(self, params, inputs, memory, resets):
    outputs = []
    for place in range(inputs.shape[1]):
      memory = np.where(resets[:, place, None], np.float32(0), memory)
      memory = self.after(memory, inputs[:, place] @ params)
      outputs.append(memory)
    return np.stack(outputs, axis=1), memory

  def after(self, memory, value):
    return np.float32(self.decay) * memory + np.float32(1 - self.decay) * value


class KeepsTheOtherLane(Average):
  def after(self, memory, value):
    return super().after(memory, value) + np.float32(0.1) * memory[::-1]


class ForgetsBeforeTheReset(Average):
  """A reset inside a segment drops the memory for all of the segment."""

  def step(self, params, inputs, memory, resets):
    memory = np.where(resets.any(axis=1)[:, None], np.float32(0), memory)
    return super().step(params, inputs, memory, resets)


class ResetsAllLanes(Average):
  """Where a reset is inside a segment."""

  def step(self, params, inputs, memory, resets):
    inside = np.arange(resets.shape[1]) > 0
    resets = resets | (inside & resets.any(axis=0))
    return super().step(params, inputs, memory, resets)


class Convolution(Average):
  """It sums the last eight values by a Fourier transform."""

  resets_at = "segments"
  sure_reach = 7

  def init(self, seed):
    generator = np.random.default_rng(seed)
    value = generator.normal(size=(4, 4)).astype(np.float32)
    return value, generator.normal(size=(8, 4)).astype(np.float32)

  def fresh(self, batch_size):
    return np.zeros((batch_size, 7, 4), np.float32)

  def step(self, params, inputs, memory, resets):
    value, kernel = params
    memory = np.where(resets[:, :1, None], np.float32(0), memory)
    rows = np.concatenate([memory, inputs @ value], axis=1)
    size = len(kernel) + rows.shape[1]
    product = np.fft.rfft(rows, n=size, axis=1)
    product *= np.fft.rfft(kernel, n=size, axis=0)
    outputs = np.fft.irfft(product, n=size, axis=1)
    outputs = outputs[:, 7 : rows.shape[1]].astype(np.float32)
    return outputs + self.seen(rows[:, 8:]), rows[:, -7:]

  def seen(self, later):
    return np.float32(0)


class SeesAMillionth(Convolution):
  """Of the next token in the segment."""

  def seen(self, later):
    return np.float32(1e-6) * np.pad(later, ((0, 0), (0, 1), (0, 0)))


class ForgetsBetweenChunks(Average):
  """Of 64 tokens of a segment."""

  def step(self, params, inputs, memory, resets):
    outputs = []
    for start in range(0, inputs.shape[1], 64):
      chunk = slice(start, start + 64)
      memory = np.zeros_like(memory) if start else memory
      part, memory = super().step(
        params, inputs[:, chunk], memory, resets[:, chunk]
      )
      outputs.append(part)
    return np.concatenate(outputs, axis=1), memory


class Overflows(Average):
  """After the thirteenth token of a document."""

  def fresh(self, batch_size):
    return np.zeros((batch_size, 5), np.float32)

  def step(self, params, inputs, memory, resets):
    outputs = []
    for place in range(inputs.shape[1]):
      memory = np.where(resets[:, place, None], np.float32(0), memory)
      averages = super().after(memory[:, :4], inputs[:, place] @ params)
      read = memory[:, 4:] + np.float32(1)
      averages = np.where(read > 13, np.float32(np.nan), averages)
      memory = np.concatenate([averages, read], axis=1)
      outputs.append(averages)
    return np.stack(outputs, axis=1), memory


class WidensItsMemory(Average):
  def after(self, memory, value):
    return super().after(memory, value).astype(np.float64)


class Forgets(Average):
  """A token is known for one more, which it says."""

  sure_reach = 1

  def after(self, memory, value):
    self.held, before = value, memory[:, :4]
    return 0.5 * before + value

  def step(self, params, inputs, memory, resets):
    outputs = []
    for place in range(inputs.shape[1]):
      memory = np.where(resets[:, place, None], np.float32(0), memory)
      value = inputs[:, place] @ params
      outputs.append(memory + value)
      memory = value
    return np.stack(outputs, axis=1), memory


class StartsAfresh(Average):
  """One without resets of its own: who calls it sets a state to zero."""

  resets_at = "segments"

  def step(self, params, inputs, memory, resets):
    assert not resets[:, 1:].any()
    return super().step(params, inputs, memory, resets)


class Remembers(Average):
  """What lanes remember cannot be told apart."""

  resets_at = "nowhere"

  def step(self, params, inputs, memory, resets):
    assert not resets.any()
    return super().step(params, inputs, memory, resets)


class ForgetsAndDoesNotSaySo(Forgets):
  sure_reach = None


def failing(rows):
  return [row.name for row in rows if row.failed]


def names(*wanted):
  return [check.name for check in wanted]


@pytest.mark.parametrize(
  ("kind", "wrong"),
  [
    (Average, ()),
    (Forgets, ()),
    (ForgetsAndDoesNotSaySo, (REACHES,)),
    (KeepsTheOtherLane, (sight.lanes_do_not_see_each_other,)),
    (WidensItsMemory, (SHAPES,)),
    (ForgetsBeforeTheReset, (INSIDE,)),
    (ResetsAllLanes, (INSIDE,)),
    (Convolution, ()),
    (SeesAMillionth, (LATER,)),
    (ForgetsBetweenChunks, (LONG,)),
    (Overflows, (LONG, GROWS)),
  ],
)
def test_vectors_of_another_library_are_checked(kind, wrong):
  rows = conformance.run(kind())
  assert set(names(*wrong)) <= set(failing(rows))
  assert len(failing(rows)) <= len(wrong) + 2
  assert len(rows) == len(table.ALL)
  reasons = [row.reason for row in rows if row.outcome == kit.NOT_APPLICABLE]
  assert "it was given with one length of memory" in reasons
  assert all(reasons)


@pytest.mark.parametrize(
  ("kind", "lanes"),
  [(StartsAfresh, "passed"), (Remembers, "not applicable")],
)
def test_resets_are_tried_where_an_implementation_has_them(kind, lanes):
  rows = {row.name: row for row in conformance.run(kind())}
  assert failing(rows.values()) == []
  assert rows[LANE.name].outcome == lanes
  for check in (INSIDE, FORGOTTEN):
    assert rows[check.name].outcome == kit.NOT_APPLICABLE
  reason = rows[FORGOTTEN.name].reason
  assert ("starts only where a segment" in reason) == (kind is StartsAfresh)


def test_no_array_is_read_backwards():
  """PyTorch takes none from NumPy."""

  class Strict(Average):
    def step(self, params, inputs, memory, resets):
      assert min(inputs.strides) > 0
      return super().step(params, inputs, memory, resets)

  assert failing(conformance.run(Strict())) == []


def test_a_row_names_the_place_and_the_difference():
  """The leak at a reset shows where the reset is, beside the tolerance."""

  class Leaks(Average):
    def step(self, params, inputs, memory, resets):
      return super().step(params, inputs, memory, resets & (resets != resets))

  rows = {row.name: row for row in conformance.run(Leaks())}
  row = rows[LANE.name]
  assert row.outcome == "FAILED"
  assert row.case == "lane 1 reset at position 3: lane 1, position 3"
  assert row.reason == "the outputs are not those of a fresh start"
  assert row.difference > 1000 * row.tolerance > 0
  line = kit.told(row)
  assert line.startswith("FAILED ")
  assert "(1.2e-05) lane 1 reset at position 3" in line


@pytest.mark.parametrize(
  ("difference", "tolerance", "was", "eased", "limit"),
  [
    (2e-6, 3e-6, True, True, 3e-5),
    (2e-5, 3e-6, False, True, 3e-5),
    (4e-5, 3e-6, False, False, 3e-5),
    (float("inf"), 3e-6, False, False, 3e-5),
    # What is not of rounding has no more room.
    (0.1, 0.15, True, True, 0.15),
    (0.2, 0.15, False, False, 0.15),
    (2e-5, 1e-4, True, True, finding.FAR),
    # What has to be the same, to differ, or to hold.
    (1e-7, 0.0, False, False, 0.0),
    (1e-6, 3e-4, False, False, 3e-4),
    (1e-3, 3e-4, True, True, 3e-4),
  ],
)
def test_slack_is_for_rounding_alone(difference, tolerance, was, eased, limit):
  one = finding.Finding(was, "", "", difference, tolerance)
  found = finding.eased(one, 10)
  assert found.is_right == eased
  assert found.tolerance == pytest.approx(limit)
  for is_right in (True, False):
    held = finding.holds(is_right, "", reason="")
    assert finding.eased(held, 10).is_right == is_right


def test_an_object_without_the_methods_is_a_mistake_of_the_user():
  class Half:
    def step(self):
      pass

  with pytest.raises(errors.UserError, match="no init and no fresh"):
    conformance.run(Half())


def test_a_class_is_tried_by_the_objects_that_it_builds():
  class Windowed(Average):
    def __init__(self, mem_len):
      super().__init__(decay=0.9 if mem_len else 0.0)

  rows = {row.name: row for row in conformance.run(Windowed)}
  assert rows[lengths.memory_makes_a_difference.name].outcome == kit.PASSED
  assert "equally many keys" in rows[SAME_LENGTH.name].reason
  with pytest.raises(errors.UserError, match="Average takes no mem_len;"):
    conformance.run(Average)


@pytest.mark.parametrize("given", [None, False])
def test_what_reads_tokens_gives_log_probabilities_unless_it_says_so(given):
  """Also if it inherits what it says of itself."""

  class Guesses(conformance.Facts):
    vocab_size = 5
    gives_log_probs = given

    def init(self, seed):
      return np.ones(1, np.float32)

    def fresh(self, batch_size):
      return np.zeros(batch_size, np.float32)

    def step(self, params, inputs, memory, resets):
      return np.full((*inputs.shape, 5), -np.log(5), np.float32), memory

  rows = {row.name: row for row in conformance.run(Guesses())}
  outcome = rows[outputs.probabilities_sum_to_one.name].outcome
  assert outcome == (kit.PASSED if given is None else kit.NOT_APPLICABLE)


@pytest.mark.parametrize(
  ("of_bias", "is_right"), [(3e-8, True), (-3e-8, True), (3e-5, False)]
)
def test_rounding_of_a_zero_gradient_is_no_difference(of_bias, is_right):
  """As that of a bias of all keys, which no output depends on."""
  expected = {"kernel": np.array([1.0, -0.5]), "bias": np.array([2e-8])}
  actual = {"kernel": np.array([1.0, -0.5]), "bias": np.array([of_bias])}
  found = finding.trees_close(actual, expected, "", reason="")
  assert found.is_right == is_right


def test_a_name_that_is_not_registered_is_a_mistake_of_the_user():
  with pytest.raises(errors.UserError, match="no mixer and no encoding 'dl'"):
    conformance.run("dl")


def test_a_step_that_does_not_run_fails_in_its_rows():
  class Raises(Average):
    def step(self, params, inputs, memory, resets):
      if inputs.shape[1] == 1:
        raise ValueError("no single tokens")
      return super().step(params, inputs, memory, resets)

  rows = conformance.run(Raises())
  assert failing(rows) == names(PARTS, LONG)
  row = next(row for row in rows if row.failed)
  assert row.reason.startswith(f"it fails: {__file__}, line ")
  assert row.reason.endswith(": ValueError: no single tokens")


@pytest.fixture(scope="module", autouse=True)
def registered():
  with examples.registered():
    yield


# What sees the next token does not see it where a segment or the text ends.
DEPENDS_ON_CUTS = (
  ONE_PASS,
  PARTS,
  SAME_LENGTH,
  INSIDE,
  FORGOTTEN,
  LONG,
  GRADIENT,
)
# All that fails, and no other row; the first is what the mistake is about.
CAUGHT = {
  "ema_leaks": (LANE, INSIDE, FORGOTTEN, EQUATIONS),
  "ema_sees": (LATER, PADDING, NO_MEMORY_PARTS, EQUATIONS, *DEPENDS_ON_CUTS),
  "ema_pads": (PADDING,),
  "ema_half": (FLOAT32,),
  "ema_learns_over_resets": (DIFFERENCES,),
  "ema_divides": (DIFFERENCES, GRADIENT),
  "ema_learns_no_decay": (DIFFERENCES,),
  "ema_ignores_its_norm": (NORM,),
  "ema_rounds": (AS_READ,),
  "parity_counts": (ONE_PASS, SAME_LENGTH, LONG, GRADIENT, OTHERS),
  "parity_restarts": (NO_MEMORY_PARTS,),
  "parity_half": (FLOAT32,),
  "floats": (FAR,),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CAUGHT)
def test_a_seeded_mistake_is_found_by_its_check(name):
  check = CAUGHT[name][0]
  subjects = kit.subjects(name).values()
  assert any(kit.row(check, subject).failed for subject in subjects)


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.parametrize("name", ["ema", "parity", "buckets", *CAUGHT])
def test_no_other_row_fails(name):
  rows = conformance.run(name)
  assert set(failing(rows)) == set(names(*CAUGHT.get(name, ())))
  passed = [row for row in rows if row.outcome == kit.PASSED]
  assert len(passed) > 15
