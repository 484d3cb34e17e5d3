"""Lanes that the devices do not divide, in training and evaluation."""

import numpy as np
import pytest

from tests import comparison
from tests import own_process

pytestmark = [pytest.mark.rest, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """What `tests/uneven.py` finds in evaluations, by mesh."""
  folder = tmp_path_factory.mktemp("uneven")
  return own_process.result("uneven", folder, "evaluation")


def test_empty_lanes_change_no_update(tmp_path):
  found = own_process.result("uneven", tmp_path, "training")
  alone, mixed = found["alone"], found["mixed"]
  # All lanes at once; four shards in each of two parts.
  assert (alone["lanes_read"], mixed["lanes_read"]) == (6, 8)
  assert np.shape(mixed["memory"])[1] == 6
  assert mixed["num_tokens"] == alone["num_tokens"]
  assert max(alone["losses"]) - min(alone["losses"]) > 0.1
  # The same dropout, and sums of the same numbers in another order.
  for name in ("losses", "query", "memory"):
    comparison.assert_close(
      np.array(mixed[name]), np.array(alone[name]), roundings=30
    )


@pytest.mark.parametrize("kind", ["fixed", "learning"])
def test_every_token_is_scored_once_on_any_number_of_devices(found, kind):
  (nll, num_tokens), (other_nll, other) = (
    found[mesh][kind] for mesh in ("alone", "mixed")
  )
  assert num_tokens == other == 149
  assert other_nll == pytest.approx(nll, rel=1e-6 if kind == "fixed" else 1e-5)


def test_empty_lanes_do_not_count_in_the_use_of_memory(found):
  assert found["mixed"]["use"] == pytest.approx(found["alone"]["use"], rel=1e-5)
