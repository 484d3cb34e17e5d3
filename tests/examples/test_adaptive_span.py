"""The example of a mixer whose heads learn their spans, and the kit on it."""

import pytest

from tests import comparison
from tests import own_process
from tests.conformance import test_command


def test_heads_attend_as_far_as_their_spans_for_a_penalty(tmp_path):
  result = own_process.result("examples.adaptive_spans", tmp_path)
  assert result["equations"] < 100 * comparison.FLOAT32
  assert result["penalty"] == [pytest.approx(result["mean"], rel=1e-5)]


@pytest.mark.slow
@pytest.mark.rest
def test_the_kit_finds_nothing():
  ended = test_command.run(
    "adaptive_span", "--extensions=examples/adaptive_span.py"
  )
  assert ended.returncode == 0, ended.stdout + ended.stderr
  assert "FAILED" not in ended.stdout
