"""A convolution of each channel over the last four tokens, before a recurrence.

`delta`, `mamba2` and `titans` read their queries, keys and values through one.
A state holds the rows of the tokens before, which are zeros where they are not
of the document.

Shapes: B lanes, T tokens, J rows that a state holds, W channels.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import visibility
from transformer_xl.model.mixers import mixer

# Tokens that it sees, the token itself included, as in the published models.
LENGTH = 4
NUM_BEFORE = LENGTH - 1

# As PyTorch draws a convolution: uniform in +-1 / sqrt(LENGTH).
draw_taps = nn.initializers.variance_scaling(
  1 / 3, "fan_in", "uniform", in_axis=0, out_axis=1
)


def convolve(
  rows: jt.Float[shapes.Array, "B T W"],
  before: jt.Float[shapes.Array, "B J W"],
  taps: jt.Float[shapes.Array, "4 W"],
  shared: mixer.Shared,
  *,
  bias: jt.Float[shapes.Array, "W"] | None = None,
) -> tuple[jt.Float[jax.Array, "B T W"], jt.Float[shapes.Array, "B J W"]]:
  """A weighted sum over the last tokens of the document.

  Args:
    rows: of the segment.
    before: of the tokens before it, newest last; J is 0 without memory.
    taps: weights of the token itself and of those 1, 2 and 3 tokens before.
    shared: where documents start, and which tokens count.
    bias: what is added to the sum.

  Returns:
    SiLU of the sums in float32, and the J rows before the next segment.
  """
  segment_len = rows.shape[1]
  carried = mixer.zeros_if_absent(before, NUM_BEFORE)
  held = jnp.concatenate([carried, rows], axis=1)
  since_reset = visibility.since_reset(shared.resets)
  total = jnp.zeros_like(rows)
  for distance in range(LENGTH):
    first = NUM_BEFORE - distance
    is_same = (since_reset >= distance)[:, :, None]
    tokens = jnp.where(is_same, held[:, first : first + segment_len], 0)
    total = total + tokens * taps[distance][None, None]
  if bias is not None:
    total = total + bias[None, None]

  # Rows to remember: those of the document that continues after the segment.
  latest = shared.newest(held, NUM_BEFORE)
  age = jnp.arange(NUM_BEFORE - 1, -1, -1)[None]
  latest = jnp.where((age <= since_reset[:, -1:])[:, :, None], latest, 0)
  latest = latest[:, NUM_BEFORE - before.shape[1] :]
  return nn.silu(total.astype(jnp.float32)), latest
