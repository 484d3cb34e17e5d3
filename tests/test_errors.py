"""What the machine refuses is one line that names the right file."""

import errno
import os

import pytest

from transformer_xl import errors

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
  ("arguments", "says"),
  [
    ((), f"{FULL}; fix that and run the same command again."),
    (("target",), f"{FULL} at target; fix that"),
    # As a copy fails: what is full is where it is written to.
    (("source", None, "target"), f"{FULL} at target; fix that"),
  ],
)
def test_a_full_disk_is_named_by_what_is_written(arguments, says):
  refusal = errors.refusal(OSError(errno.ENOSPC, FULL, *arguments))
  assert refusal.startswith(says)
  assert "training" not in refusal
