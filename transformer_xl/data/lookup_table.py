"""Tables from code points, or bytes, to token ids."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl import errors

_MISSING = np.iinfo(np.uint32).max


def make(symbols: Sequence[str], *, length: int) -> NDArray[np.uint32]:
  """Returns the id of each code point below `length`, [length]."""
  table = np.full(length, _MISSING, np.uint32)
  table[[ord(s) for s in symbols]] = np.arange(len(symbols), dtype=np.uint32)
  return table


def find(
  table: NDArray[np.uint32],
  points: NDArray[Any],
  *,
  name: Callable[[int], str],
) -> NDArray[np.uint32]:
  """Returns the ids of code points, [num_points].

  Args:
    table: from `make`.
    points: code points, [num_points].
    name: names a code point in an error.

  Raises:
    UserError: a code point has no id.
  """
  ids = table[points]
  missing = ids == _MISSING
  if missing.any():
    at = int(np.argmax(missing))
    raise errors.UserError(
      f"{name(int(points[at]))} at position {at} of the text is not in the"
      " vocabulary; leave it out or use a model with a larger vocabulary."
    )
  return ids
