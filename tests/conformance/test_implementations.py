"""Every implementation passes every check."""

import pytest

from tests.conformance import adapters
from tests.conformance import checks


def _cases():
  for name, build in adapters.IMPLEMENTATIONS.items():
    adapter = build(mem_len=0, same_length=False)
    left_out = () if adapter.masks_empty else checks.NEED_MASKED_MEMORY
    if not adapter.has_attention:
      left_out = checks.NEED_ATTENTION
    for check in checks.ALL:
      if check not in left_out:
        yield pytest.param(build, check, id=f"{name}-{check.__name__}")


@pytest.mark.parametrize(("build", "check"), _cases())
def test_conforms(build, check):
  check(build)
