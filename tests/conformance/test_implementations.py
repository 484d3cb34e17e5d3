"""Every implementation passes every check that has a meaning for it."""

import pytest

from tests.conformance import adapters
from tests.conformance import checks


def _name(adapter):
  return f"{adapter.memory}-{adapter.config.encoding}"


# These put every check to the test: what the oracle covers of the others is the
# rest's, with the checks that share one compiled step. `make test-conformance`
# puts every check to every combination.
ESSENTIAL = ("plain", "attended_zeros", "lstm")
QUICK = (
  checks.future_does_not_leak,
  checks.lanes_are_independent,
  checks.reset_of_a_lane_equals_fresh,
  checks.reset_inside_a_segment_equals_fresh,
  checks.gradient_through_memory_is_that_of_one_pass,
  checks.probabilities_sum_to_one,
  checks.without_memory_steps_complete_a_segment,
)


def _marks(name, adapter, check):
  is_quick = check in QUICK
  if name in ESSENTIAL:
    return ()
  # The gradient through what recurrent layers remember is checked here alone;
  # attention has this check among the named implementations.
  learns = check is checks.gradient_through_memory_is_that_of_one_pass
  if learns and not adapter.has_attention:
    return ()
  return pytest.mark.rest if name or is_quick else pytest.mark.combinations


def _cases():
  combinations = (("", build) for build in adapters.COMBINATIONS)
  for name, build in (*adapters.IMPLEMENTATIONS.items(), *combinations):
    adapter = build(mem_len=0, same_length=False)
    for check in checks.applying(adapter):
      yield pytest.param(
        build,
        check,
        id=f"{name or _name(adapter)}-{check.__name__}",
        marks=_marks(name, adapter, check),
      )


@pytest.mark.some(20)
@pytest.mark.parametrize(("build", "check"), _cases())
def test_conforms(build, check, counting):
  counting("checks", build(mem_len=0, same_length=False))
  check(build)
