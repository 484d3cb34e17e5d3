"""Slopes against what their paper prints."""

import numpy as np
import pytest

from tests.oracles import alibi as equations
from transformer_xl.model.encodings import alibi


def test_slopes_are_those_that_the_paper_prints():
  """Press et al. 2021, section 3, for 8 and for 16 heads."""
  assert alibi.slopes(8) == [1 / 2**power for power in range(1, 9)]
  sixteen = [1 / 2 ** (power / 2) for power in range(1, 17)]
  np.testing.assert_allclose(alibi.slopes(16), sixteen, rtol=1e-12)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 12, 20])
def test_slopes_for_any_number_of_heads(heads):
  expected = [equations.slope(h, heads) for h in range(heads)]
  np.testing.assert_allclose(alibi.slopes(heads), expected, rtol=1e-12)
  assert len(set(alibi.slopes(heads))) == heads


def test_three_heads_have_the_slopes_of_the_published_program():
  """`get_slopes(3)` of ofirpress/attention_with_linear_biases."""
  np.testing.assert_allclose(alibi.slopes(3), [2**-4, 2**-8, 2**-2])
