"""Everything that training changes, besides the memory."""

from typing import NamedTuple

import jaxtyping as jt

from transformer_xl import shapes


class TrainState(NamedTuple):
  """What training changes, besides the memory."""

  step: jt.Int[shapes.Array, ""]  # Completed updates; the next segment.
  params: shapes.PyTree
  opt_state: shapes.PyTree
  average: shapes.PyTree  # Of params: a moving one, or a mean; or None.
  # The mean is over the updates after this one; None for a moving average.
  average_start: jt.Int[shapes.Array, ""] | None = None
