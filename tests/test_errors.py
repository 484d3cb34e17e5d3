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


def test_a_full_disk_without_a_file_is_named_by_the_folder_that_is_written():
  with (
    pytest.raises(ValueError, match="out of room") as caught,
    errors.writing_to("workdir"),
    errors.writing_to("workdir/data"),
  ):
    raise ValueError("out of room") from OSError(errno.ENOSPC, FULL)
  says = f"{FULL} at workdir/data; fix that"
  assert errors.refusal(caught.value).startswith(says)
