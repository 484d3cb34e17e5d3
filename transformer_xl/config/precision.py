"""The one setting of JAX itself that a run depends on: its number of bits."""

import jax

from transformer_xl import errors


def require_32_bits() -> None:
  """Refuses JAX's 64-bit mode, in which some arrays of layers are float64.

  Raises:
    UserError: `jax_enable_x64` is set.
  """
  if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
    raise errors.UserError(
      "models are computed in float32 or bfloat16, and JAX's 64-bit mode makes "
      "some of their arrays float64: unset JAX_ENABLE_X64, or call "
      "jax.config.update('jax_enable_x64', False)."
    )
