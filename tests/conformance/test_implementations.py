"""Every mixer and encoding passes every check that has a meaning for it."""

import pytest

from tests.conformance import adapters
from transformer_xl.conformance import kit
from transformer_xl.conformance import subject as subject_lib
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import lengths
from transformer_xl.conformance.checks import long_texts
from transformer_xl.conformance.checks import numbers
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import resets
from transformer_xl.conformance.checks import sight
from transformer_xl.conformance.checks import state
from transformer_xl.conformance.checks import table


def _name(adapter):
  return f"{adapter.memory}-{adapter.config.encoding}"


# These put every check to the test: what the oracle covers of the others is the
# rest's, with the checks that share one compiled step. `make test-conformance`
# puts every check to every combination.
ESSENTIAL = ("plain", "attended_zeros", adapters.CARRYING[-1])
QUICK = (
  sight.a_later_token_changes_no_earlier_output,
  sight.every_token_reaches_later_outputs,
  sight.lanes_do_not_see_each_other,
  resets.a_reset_of_a_lane_is_a_fresh_start,
  resets.a_reset_inside_a_segment_is_a_fresh_start,
  gradients.the_gradient_through_memory_is_that_of_one_pass,
  outputs.probabilities_sum_to_one,
  lengths.without_memory_parts_complete_a_segment,
)
# Of these, what is true of a mixer or an encoding is true of its combinations.
ONCE = (
  long_texts.a_long_text_may_be_cut_anywhere,
  state.the_memory_keeps_its_shapes_and_types,
  state.memory_does_not_grow,
  state.a_saved_memory_continues_alike,
  gradients.the_gradient_is_that_of_differences,
  numbers.parameters_are_float32,
  numbers.bfloat16_is_near_float32,
  numbers.reading_rounds_no_parameter_of_training,
  numbers.large_numbers_stay_finite,
  numbers.far_positions_score_as_near_ones,
  numbers.dropout_of_a_lane_follows_from_its_number,
)
# The command forces two devices, in a process of its own: `test_command`.
ELSEWHERE = (numbers.two_devices_give_what_one_gives,)


def _marks(name, subject, check):
  is_quick = check in QUICK
  if name in ESSENTIAL:
    return ()
  # The gradient through what recurrent layers remember is checked here alone;
  # attention has this check among the named implementations.
  learns = check is gradients.the_gradient_through_memory_is_that_of_one_pass
  if learns and not subject.facts.has_attention:
    return ()
  return pytest.mark.rest if name or is_quick else pytest.mark.combinations


def _cases():
  combinations = (("", build) for build in adapters.COMBINATIONS)
  for name, build in (*adapters.IMPLEMENTATIONS.items(), *combinations):
    subject = subject_lib.Subject(build)
    for check in table.ALL:
      left_out = check in ELSEWHERE or (not name and check in ONCE)
      if left_out or check.why_not(subject):
        continue
      adapter = subject.at(subject_lib.LENGTH)
      yield pytest.param(
        subject,
        check,
        id=f"{name or _name(adapter)}-{check.function.__name__}",
        marks=_marks(name, subject, check),
      )


@pytest.mark.some(8)
@pytest.mark.parametrize(("subject", "check"), _cases())
def test_conforms(subject, check, counting):
  counting("checks", subject.at(subject_lib.LENGTH))
  row = kit.of_findings(check.name, list(check.function(subject)))
  assert not row.failed, kit.told(row)
