"""The model through each implementation of attention but `auto`'s choice."""

import pytest

from tests.conformance import adapters
from tests.conformance import checks
from tests.conformance import test_oracle

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


@pytest.mark.parametrize(
  ("implementation", "encoding"),
  [
    ("pallas", "alibi"),
    ("chunked", "rope"),
    ("cudnn", "rope"),
    ("cudnn", "none"),
    ("cudnn", "absolute"),
    *(
      pytest.param(implementation, encoding, marks=pytest.mark.rest)
      for implementation in ("reference", "head_major", "chunked", "pallas")
      for encoding in ("rope", "alibi", "none", "absolute", "shaw")
    ),
  ],
)
def test_every_encoding_equals_the_oracle(implementation, encoding):
  adapter = adapters.Package(
    mem_len=3,
    same_length=True,
    encoding=encoding,
    num_heads=3,
    attention=implementation,
  )
  worst = test_oracle.worst_difference(adapter, segment_len=4)
  assert worst < test_oracle.ROUNDING
