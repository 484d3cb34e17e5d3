"""What a reader of any format hands to the importer."""

import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from numpy.typing import NDArray

from transformer_xl import errors


class Lengths(NamedTuple):
  """How the source evaluates, in tokens."""

  segment_len: int
  mem_len: int
  clamp_len: int  # 0: none.
  same_length: bool


class Source(NamedTuple):
  """A foreign checkpoint."""

  tensors: Mapping[str, NDArray[Any]]  # By the format's own names.
  files: tuple[str, ...]  # That hold them.
  model: dict[str, Any]  # Fields of our `ModelConfig`.
  lengths: Lengths | None  # None where the source does not say.
  vocabulary: str | None  # A file or folder, if one lies beside the weights.


def find(folder: str, names: Iterable[str]) -> str | None:
  """The first of some files that a folder has."""
  paths = (os.path.join(folder, name) for name in names)
  return next((path for path in paths if os.path.exists(path)), None)


def tie_projections(tied: Sequence[bool]) -> str:
  """Our name for which clusters share the embedding's projection.

  Raises:
    UserError: it is a pattern that none of the published models has.
  """
  rest = len(tied) - 1
  patterns = {
    "all_but_first": [False] + [True] * rest,
    "none": [False] + [False] * rest,
    "all": [True] + [True] * rest,
  }
  for name, pattern in patterns.items():
    if list(tied) == pattern:
      return name
  raise errors.UserError(
    f"the softmax shares the projections of the clusters {list(tied)}; only "
    "none, all, and all but the first can be imported."
  )


def div_val(widths: Sequence[int]) -> int:
  """By how much vectors narrow from one cluster to the next.

  Raises:
    UserError: no number gives these widths.
  """
  if len(widths) == 1:
    return 1
  for divisor in range(1, widths[0] + 1):
    if all(
      width == widths[0] // divisor**index for index, width in enumerate(widths)
    ):
      return divisor
  raise errors.UserError(
    f"the clusters' embeddings have the widths {list(widths)}, which are not "
    "those of one div_val; the source is of another kind of model."
  )
