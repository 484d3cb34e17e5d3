import numpy as np
import pytest

from tests.parity import configurations
from tests.parity import differences
from tests.parity import golden
from tests.parity import ours

ABSOLUTE = differences.TOLERANCES["log_probs"]
RELATIVE = differences.TOLERANCES["gradients"]


# `make parity` compares all drawn models.
@pytest.mark.some(3)
@pytest.mark.parametrize("index", configurations.CHARACTERISTIC)
def test_a_drawn_model_gives_the_numbers_that_huggingface_gave(index):
  found = golden.summary(ours.run_drawn(index))
  stored = golden.read(index)
  assert set(found) == set(stored)
  for name in ("loss", "log_probs", "memory"):
    np.testing.assert_allclose(found[name], stored[name], rtol=0, atol=ABSOLUTE)
  np.testing.assert_allclose(
    found["gradient_norms"],
    stored["gradient_norms"],
    rtol=RELATIVE,
    atol=1e-7,  # Where a gradient is zero but for rounding.
  )
