"""Mapping between the tensors of a foreign checkpoint and our parameters.

A layout lists every tensor that a format stores for a model. It works in both
directions: the same list imports, exports and maps gradients.
"""

import functools
import math
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
from flax import traverse_util
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import transformer_xl

# Tensor names that an error lists at most.
NUM_NAMED = 4


class Piece(NamedTuple):
  """A part of one of our parameters."""

  parameter: str  # Path, such as "layers/attention/query".
  at: int | slice | None = None  # A layer, some rows, or None for all.


class Tensor(NamedTuple):
  """One tensor of the other format: the concatenation of its pieces."""

  name: str
  pieces: tuple[Piece, ...]
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
def parameter_shapes(
  config: schema.ModelConfig,
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every parameter of a model by its path."""
  params = transformer_xl.abstract_params(config)
  flat = traverse_util.flatten_dict(params, sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def tensor_shapes(
  layout: Iterable[Tensor], config: schema.ModelConfig
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a layout by its name in the file."""
  expected = parameter_shapes(config)
  return {
    tensor.name: _file_shape(tensor, tensor.pieces, expected)
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

  Args:
    tensors: by their names in the other format.
    layout: the format's tensors for this model.
    config: of the model.
    ignored: pattern of tensor names that hold no parameters.

  Returns:
    The parameters, and the destination of each tensor.

  Raises:
    UserError: a tensor is missing, unused or of a wrong shape, or tensors that
      should be shared differ.
  """
  layout = list(layout)
  _check_names(tensors, layout, ignored)
  expected = parameter_shapes(config)
  params = {
    name: np.empty(shape, np.float32) for name, shape in expected.items()
  }
  written = dict.fromkeys(expected, 0)
  rows = []
  for tensor in layout:
    values = _shared_values(tensors, tensor)
    _check_shape(tensor, values.shape, expected)
    sizes = [
      _file_shape(tensor, [p], expected)[tensor.axis] for p in tensor.pieces
    ]
    parts = np.split(values, np.cumsum(sizes)[:-1], axis=tensor.axis)
    for piece, part in zip(tensor.pieces, parts, strict=True):
      part = _reorient(part, tensor)
      params[piece.parameter][_index(piece)] = part
      written[piece.parameter] += part.size
    names = tuple(dict.fromkeys(piece.parameter for piece in tensor.pieces))
    rows.append(Mapped(tensor.name, values.shape, names))
  for name, shape in expected.items():
    if written[name] != math.prod(shape):
      raise ValueError(f"the layout gives {written[name]} numbers of {name}")
  return traverse_util.unflatten_dict(params, sep="/"), rows


def export_tensors(
  params: shapes.PyTree,
  layout: Iterable[Tensor],
) -> dict[str, NDArray[Any]]:
  """Converts our parameters to the tensors of another format, each once."""
  flat = traverse_util.flatten_dict(params, sep="/")
  result = {}
  for tensor in layout:
    parts = [
      _reorient(np.asarray(flat[piece.parameter])[_index(piece)], tensor)
      for piece in tensor.pieces
    ]
    values = np.concatenate(parts, axis=tensor.axis)
    result[tensor.name] = np.ascontiguousarray(values)
  return result


def _check_names(tensors, layout, ignored):
  """Raises a UserError if a tensor is missing or unused."""
  known = {name for tensor in layout for name in (tensor.name, *tensor.aliases)}
  missing = [
    tensor.name
    for tensor in layout
    if not any(name in tensors for name in (tensor.name, *tensor.aliases))
  ]
  unused = [
    name
    for name in tensors
    if name not in known and not re.search(ignored, name)
  ]
  if missing or unused:
    raise errors.UserError(
      "the tensors in the source do not make up this model: "
      f"{_count(missing)} missing, {_count(unused)} unused; check --format, "
      "and that the source is a language model with its softmax."
    )


def _count(names: list[str]) -> str:
  named = ", ".join(names[:NUM_NAMED])
  more = ", ..." if len(names) > NUM_NAMED else ""
  return f"{len(names)} ({named}{more})" if names else "none"


def _shared_values(tensors, tensor: Tensor) -> NDArray[Any]:
  """The values of a tensor; a UserError if its aliases differ."""
  found = [name for name in (tensor.name, *tensor.aliases) if name in tensors]
  values = np.asarray(tensors[found[0]])
  for name in found[1:]:
    if not np.array_equal(values, tensors[name]):
      raise errors.UserError(
        f"{found[0]} and {name} should be shared but have different values; "
        "the source's configuration contradicts its tensors."
      )
  return values


def _check_shape(tensor: Tensor, shape, expected) -> None:
  wanted = _file_shape(tensor, tensor.pieces, expected)
  if shape != wanted:
    raise errors.UserError(
      f"{tensor.name} has the shape {shape}, but the rest of the source "
      f"requires {wanted}; its configuration is of another model."
    )


def _file_shape(tensor: Tensor, pieces, expected) -> tuple[int, ...]:
  """Shape of the concatenation of some pieces in the file."""
  parts = []
  for piece in pieces:
    empty = np.broadcast_to(np.float32(0), expected[piece.parameter])
    parts.append(_reorient(empty[_index(piece)], tensor).shape)
  shape = list(parts[0])
  shape[tensor.axis] = sum(part[tensor.axis] for part in parts)
  return tuple(shape)


def _reorient(values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
  """Converts the file's orientation to ours, or back; it is an involution."""
  if tensor.transpose:
    values = values.T
  return values[::-1] if tensor.reverse else values


def _index(piece: Piece):
  return ... if piece.at is None else piece.at
