"""The result of reading a foreign checkpoint, whatever its format."""

import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from numpy.typing import NDArray

from transformer_xl import errors


class Lengths(NamedTuple):
  """Lengths of the source's evaluation, in tokens."""

  segment_len: int
  mem_len: int
  clamp_len: int  # 0 for no clamping.
  same_length: bool


class Source(NamedTuple):
  """A foreign checkpoint."""

  tensors: Mapping[str, NDArray[Any]]  # By the names of the format.
  files: tuple[str, ...]  # Paths of the files with the tensors.
  model: dict[str, Any]  # Fields of our `ModelConfig`.
  lengths: Lengths | None  # None if the source does not state them.
  vocabulary: str | None  # A file or folder beside the weights, if any.


def find(folder: str, names: Iterable[str]) -> str | None:
  """Returns the path of the first of the names that exists in a folder."""
  paths = (os.path.join(folder, name) for name in names)
  return next(filter(os.path.exists, paths), None)


def shared_projections(style: str, count: int) -> list[bool]:
  """Whether each cluster of the softmax shares the embedding's projection.

  Args:
    style: `model.tie_projections`.
    count: of the clusters.
  """
  return [style == "all"] + [style != "none"] * (count - 1)


def tie_projections(tied: Sequence[bool]) -> str:
  """The inverse of `shared_projections`.

  Raises:
    UserError: no published model has this pattern.
  """
  for style in ("all_but_first", "none", "all"):
    if list(tied) == shared_projections(style, len(tied)):
      return style
  raise errors.UserError(
    f"the softmax shares the projections of the clusters {list(tied)}; only "
    "none, all, and all but the first can be imported."
  )


def div_val(widths: Sequence[int]) -> int:
  """Returns the factor by which embeddings narrow from cluster to cluster.

  Raises:
    UserError: no factor gives these widths.
  """
  for divisor in range(1, widths[0] + 1):
    if all(width == widths[0] // divisor**i for i, width in enumerate(widths)):
      return divisor
  raise errors.UserError(
    f"the clusters' embeddings have the widths {list(widths)}, which no "
    "div_val gives; the source is another kind of model."
  )
