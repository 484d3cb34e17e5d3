"""JAX's 64-bit mode is refused before anything is computed."""

import jax
import pytest

from transformer_xl import errors
from transformer_xl.config import precision


def test_64_bits_are_refused_in_one_line():
  precision.require_32_bits()
  with (
    jax.enable_x64(True),
    pytest.raises(errors.UserError, match="unset JAX_ENABLE_X64") as caught,
  ):
    precision.require_32_bits()
  assert "\n" not in str(caught.value)
