"""All checks, in the order of the rows."""

from transformer_xl.conformance.checks import check
from transformer_xl.conformance.checks import cuts
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import lengths
from transformer_xl.conformance.checks import long_texts
from transformer_xl.conformance.checks import numbers
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import resets
from transformer_xl.conformance.checks import sight
from transformer_xl.conformance.checks import state

ALL: tuple[check.Check, ...] = (
  sight.a_later_token_changes_no_earlier_output,
  sight.every_token_reaches_later_outputs,
  sight.lanes_do_not_see_each_other,
  cuts.segments_give_what_one_pass_gives,
  cuts.parts_give_what_segments_give,
  cuts.with_same_length_the_cuts_do_not_matter,
  cuts.same_length_limits_the_window,
  cuts.parts_complete_a_segment,
  resets.a_reset_of_a_lane_is_a_fresh_start,
  resets.a_reset_inside_a_segment_is_a_fresh_start,
  resets.a_reset_inside_a_segment_leaves_its_rest,
  resets.forgotten_documents_never_come_back,
  long_texts.a_long_text_may_be_cut_anywhere,
  lengths.without_memory_segments_are_independent,
  lengths.without_memory_a_segment_is_read,
  lengths.without_memory_same_length_is_off,
  lengths.without_memory_parts_complete_a_segment,
  lengths.memory_longer_than_the_text_changes_nothing,
  lengths.memory_makes_a_difference,
  state.padding_is_not_remembered,
  state.the_memory_keeps_its_shapes_and_types,
  state.memory_does_not_grow,
  state.a_saved_memory_continues_alike,
  gradients.no_gradient_passes_into_memory,
  gradients.the_gradient_through_memory_is_that_of_one_pass,
  gradients.the_gradient_through_memory_is_that_of_differences,
  gradients.the_gradient_is_that_of_differences,
  numbers.parameters_are_float32,
  numbers.each_layer_calls_its_norm,
  numbers.bfloat16_is_near_float32,
  numbers.reading_rounds_no_parameter_of_training,
  numbers.large_numbers_stay_finite,
  numbers.far_positions_score_as_near_ones,
  numbers.two_devices_give_what_one_gives,
  numbers.dropout_of_a_lane_follows_from_its_number,
  outputs.probabilities_sum_to_one,
  outputs.other_ways_of_reading_give_the_same,
  outputs.outputs_are_those_of_its_own_equations,
)
