"""Every check can fail: each mutant is caught by the one meant for it.

That the model without the mistake passes the same check, on the same options,
is in `test_implementations` and `test_oracle`.
"""

import pytest

from tests.conformance import adapters
from tests.conformance import checks
from tests.conformance import mutants
from tests.conformance import test_oracle

CAUGHT = (
  (mutants.IgnoresResets, checks.reset_of_a_lane_equals_fresh),
  (mutants.ResetsWholeLanesOnly, checks.reset_inside_a_segment_equals_fresh),
  (mutants.RemembersAfterReset, checks.old_documents_never_leak),
  (mutants.LosesTheNewestState, checks.segmented_equals_one_pass),
  (mutants.KeepsOneSegment, checks.segmented_equals_one_pass),
  (mutants.MixesLanes, checks.lanes_are_independent),
  (
    mutants.AttendsEmptyMemory,
    checks.longer_memory_than_text_makes_no_difference,
  ),
  (
    mutants.StopsGradients,
    checks.gradient_through_memory_is_that_of_one_pass,
  ),
  (mutants.KeepsGradients, checks.no_gradient_into_memory),
  (mutants.ForgetsToNormalise, checks.probabilities_sum_to_one),
)
CAUGHT_INSIDE = (
  (mutants.see_the_next_token, checks.future_does_not_leak),
  (mutants.window_too_long, checks.same_length_does_not_depend_on_the_cuts),
  (mutants.window_too_long, checks.same_length_limits_the_window),
)
CAUGHT_BY_ORACLE = (
  mutants.window_too_long,
  mutants.distances_start_at_one,
  mutants.clamp_one_late,
  mutants.interleave_sines_and_cosines,
  mutants.shift_one_column_less,
)
# What NumPy says where two arrays should have been equal; a check that merely
# found nothing to compare would say something else.
COMPARISON = "Not equal to tolerance|Arrays are not equal"


def _name(value):
  return value.__name__


@pytest.mark.some(4)
@pytest.mark.parametrize(("kind", "check"), CAUGHT, ids=_name)
def test_spoilt_step_is_caught(kind, check):
  with pytest.raises(AssertionError, match=COMPARISON):
    check(adapters.package(kind))


@pytest.mark.parametrize(("mutate", "check"), CAUGHT_INSIDE, ids=_name)
def test_spoilt_model_is_caught(mutate, check, monkeypatch):
  mutate(monkeypatch)
  with pytest.raises(AssertionError, match=COMPARISON):
    check(adapters.package())


def _differ_from_oracle() -> float:
  adapter = adapters.Package(
    mem_len=3, same_length=True, clamp_len=2, attention="xla"
  )
  return test_oracle.worst_difference(adapter, [4] * 4)


@pytest.fixture(scope="module")
def sound():
  return _differ_from_oracle()


@pytest.mark.some(3)
@pytest.mark.parametrize("mutate", CAUGHT_BY_ORACLE, ids=_name)
def test_spoilt_model_differs_from_the_oracle(mutate, sound, monkeypatch):
  mutate(monkeypatch)
  spoilt = _differ_from_oracle()
  assert sound < test_oracle.ROUNDING
  assert spoilt > 1000 * test_oracle.ROUNDING


@pytest.mark.parametrize(
  ("mutate", "encoding"),
  [(mutants.rotate_neighbours, "rope"), (mutants.scale_penalties, "alibi")],
)
def test_spoilt_encoding_differs_from_the_oracle(mutate, encoding, monkeypatch):
  mutate(monkeypatch)
  adapter = adapters.Package(mem_len=3, same_length=True, encoding=encoding)
  assert (
    test_oracle.worst_difference(adapter, [4] * 4) > 1000 * test_oracle.ROUNDING
  )
