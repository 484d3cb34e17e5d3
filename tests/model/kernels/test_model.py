"""The model through each implementation of attention but `auto`'s choice."""

import pytest

from tests.conformance import adapters
from tests.conformance import checks

# Those that reach the most of what a mask, a shift or a gradient can get wrong.
CHECKS = (
  checks.segmented_equals_one_pass,
  checks.same_length_does_not_depend_on_the_cuts,
  checks.reset_inside_a_segment_equals_fresh,
  checks.no_gradient_into_memory,
)


# The last two share a compiled step.
@pytest.mark.parametrize(
  "check",
  [
    *(pytest.param(check, marks=pytest.mark.rest) for check in CHECKS[:2]),
    *CHECKS[2:],
  ],
  ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("implementation", ["reference", "chunked", "pallas"])
def test_the_model_conforms(implementation, check):
  check(adapters.package(attention=implementation))
