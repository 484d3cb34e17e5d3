"""Mapping between the tensors of a foreign checkpoint and our parameters.

A layout lists every tensor that a format stores for a model. It works in both
directions: the same list imports, exports and maps gradients.
"""

import functools
import re
from collections.abc import Iterable
from collections.abc import Mapping
from types import EllipsisType
from typing import Any
from typing import NamedTuple

import numpy as np
from flax import traverse_util
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import transformer_xl

Shapes = dict[str, tuple[int, ...]]  # By the name of the array.
QKV = ("attention/query", "attention/key", "attention/value")
NUM_NAMED = 4  # Tensor names that an error lists at most.


class Tensor(NamedTuple):
  """One tensor of the other format: our parameters, concatenated."""

  name: str
  parameters: tuple[str, ...]  # Paths, such as "layers/attention/query".
  at: int | slice | EllipsisType = ...  # A layer or some rows of each.
  axis: int = 0  # Axis of the concatenation, in the file.
  transpose: bool = False
  reverse: bool = False  # Reversed rows: PyTorch's clusters.
  aliases: tuple[str, ...] = ()  # Other names that may hold the same values.


class Mapped(NamedTuple):
  """One tensor's row in the report of an import."""

  name: str
  shape: tuple[int, ...]
  parameters: tuple[str, ...]


@functools.cache
def parameter_shapes(config: schema.ModelConfig) -> Shapes:
  """Returns the shape of every parameter of a model by its path."""
  params = transformer_xl.abstract_params(config)
  flat = traverse_util.flatten_dict(params, sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def tensor_shapes(
  layout: Iterable[Tensor], config: schema.ModelConfig
) -> Shapes:
  """Returns the shape of every tensor of a layout by its name in the file."""
  params = {
    name: np.broadcast_to(np.float32(0), shape)
    for name, shape in parameter_shapes(config).items()
  }
  return {
    tensor.name: _joined(_views(params, tensor), tensor.axis)
    for tensor in layout
  }


def import_tensors(
  tensors: Mapping[str, NDArray[Any]],
  layout: Iterable[Tensor],
  config: schema.ModelConfig,
  *,
  ignored: str,
) -> tuple[shapes.PyTree, list[Mapped]]:
  """Converts the tensors of another format to our parameters, in float32.

  Names that match the pattern `ignored` may be there, but hold no parameters.

  Returns:
    The parameters, and the destination of each tensor.

  Raises:
    UserError: a tensor is missing, unused or of a wrong shape, or tensors that
      should be shared differ.
  """
  layout = list(layout)
  _check_names(tensors, layout, ignored)
  params = {
    name: np.empty(shape, np.float32)
    for name, shape in parameter_shapes(config).items()
  }
  missing = {name: values.size for name, values in params.items()}
  rows = []
  for tensor in layout:
    values, views = _shared_values(tensors, tensor), _views(params, tensor)
    wanted = _joined(views, tensor.axis)
    if values.shape != wanted:
      raise errors.UserError(
        f"{tensor.name} has the shape {values.shape}, but the rest of the "
        f"source requires {wanted}; its configuration is of another model."
      )
    ends = np.cumsum([view.shape[tensor.axis] for view in views])[:-1]
    parts = np.split(values, ends, axis=tensor.axis)
    for name, view, part in zip(tensor.parameters, views, parts, strict=True):
      view[...] = part
      missing[name] -= part.size
    rows.append(Mapped(tensor.name, values.shape, tensor.parameters))
  if any(missing.values()):
    raise ValueError(f"the layout leaves out {missing} numbers")
  return traverse_util.unflatten_dict(params, sep="/"), rows


def export_tensors(
  params: shapes.PyTree, layout: Iterable[Tensor]
) -> dict[str, NDArray[Any]]:
  """Converts our parameters to the tensors of another format, each once."""
  flat = traverse_util.flatten_dict(params, sep="/")
  flat = {name: np.asarray(values) for name, values in flat.items()}
  return {
    tensor.name: np.ascontiguousarray(
      np.concatenate(_views(flat, tensor), axis=tensor.axis)
    )
    for tensor in layout
  }


def _check_names(tensors, layout, ignored):
  names = [(tensor.name, *tensor.aliases) for tensor in layout]
  known = {name for group in names for name in group}
  missing = [group[0] for group in names if tensors.keys().isdisjoint(group)]
  unused = [
    name for name in tensors if not (name in known or re.search(ignored, name))
  ]
  if missing or unused:
    raise errors.UserError(
      "the tensors in the source do not make up this model: "
      f"{_count(missing)} missing, {_count(unused)} unused; check --format, "
      "and that the source is a language model with its softmax."
    )


def _count(names: list[str]) -> str:
  named = ", ".join(names[:NUM_NAMED] + ["..."] * (len(names) > NUM_NAMED))
  return f"{len(names)} ({named})" if names else "none"


def _shared_values(tensors, tensor: Tensor) -> NDArray[Any]:
  found = [name for name in (tensor.name, *tensor.aliases) if name in tensors]
  values = np.asarray(tensors[found[0]])
  for name in found[1:]:
    if not np.array_equal(values, tensors[name]):
      raise errors.UserError(
        f"{found[0]} and {name} should be shared but have different values; "
        "the source's configuration contradicts its tensors."
      )
  return values


def _views(params, tensor: Tensor) -> list[NDArray[Any]]:
  """Views of our parameters in the orientation of the file."""
  views = [params[name][tensor.at] for name in tensor.parameters]
  views = [view.T if tensor.transpose else view for view in views]
  return [view[::-1] if tensor.reverse else view for view in views]


def _joined(views: list[NDArray[Any]], axis: int) -> tuple[int, ...]:
  """Shape of the concatenation of some arrays."""
  shape = list(views[0].shape)
  shape[axis] = sum(view.shape[axis] for view in views)
  return tuple(shape)
