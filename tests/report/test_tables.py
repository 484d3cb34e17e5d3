"""Numbers as a report writes them."""

import pytest

from transformer_xl.report import tables


@pytest.mark.parametrize(
  ("seconds", "text"),
  [
    (0.04, "0.0 s"),
    (9.94, "9.9 s"),
    (9.96, "10 s"),
    (59.6, "1 min"),
    (189, "3 min 9 s"),
    (7199.4, "1 h 59 min"),
    (3600, "1 h"),
    (86_400 + 60, "1 d"),
    (7 * 86_400 + 5 * 3600, "7 d 5 h"),
  ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
  assert tables.duration(seconds) == text
