"""Every implementation passes every check."""

import pytest

from tests.conformance import adapters
from tests.conformance import checks


def _cases():
  for name, build in adapters.IMPLEMENTATIONS.items():
    masks_empty = build(mem_len=0, same_length=False).masks_empty
    for check in checks.ALL:
      if masks_empty or check not in checks.NEED_MASKED_MEMORY:
        yield pytest.param(build, check, id=f"{name}-{check.__name__}")


@pytest.mark.parametrize(("build", "check"), _cases())
def test_conforms(build, check):
  check(build)
