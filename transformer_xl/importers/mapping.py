"""What each tensor of a foreign checkpoint is in ours, in both directions.

A layout lists every tensor that a format stores for one model. It is data: the
same list reads a checkpoint, writes one, and maps gradients.
"""

import functools
import math
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import transformer_xl

# Where most of an error's names stop being of use.
NUM_NAMED = 4


class Piece(NamedTuple):
  """A part of one of our parameters."""

  parameter: str  # Its path, such as "layers/attention/query".
  at: int | slice | None = None  # A layer, some rows, or all of it.


class Tensor(NamedTuple):
  """One tensor of the other format: pieces side by side."""

  name: str
  pieces: tuple[Piece, ...]
  axis: int = 0  # Along which the pieces lie in the file.
  transpose: bool = False
  reverse: bool = False  # Rows, as PyTorch's cluster order (facts 2.9).
  aliases: tuple[str, ...] = ()  # Names under which the same values may be.


class Mapped(NamedTuple):
  """One row of the certificate."""

  name: str
  shape: tuple[int, ...]
  parameters: tuple[str, ...]


@functools.cache
def parameter_shapes(
  config: schema.ModelConfig,
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter of a model by its path."""
  params = transformer_xl.abstract_params(config)
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
    for path, leaf in leaves
  }


def tensor_shapes(
  layout: Iterable[Tensor], config: schema.ModelConfig
) -> dict[str, tuple[int, ...]]:
  """The shape of every tensor of a layout by its name in the file."""
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
  """Our parameters, in float32, from the tensors of another format.

  Args:
    tensors: by the other format's names.
    layout: of that format for this model.
    config: of the model.
    ignored: pattern of names that hold no parameters.

  Returns:
    The parameters, and what became of each tensor.

  Raises:
    UserError: a tensor is missing, has another shape, is left over, or
      differs from one that it should be the same as.
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
      part = _turn(part, tensor)
      params[piece.parameter][_index(piece)] = part
      written[piece.parameter] += part.size
    names = tuple(dict.fromkeys(piece.parameter for piece in tensor.pieces))
    rows.append(Mapped(tensor.name, values.shape, names))
  for name, shape in expected.items():
    if written[name] != math.prod(shape):
      raise ValueError(f"the layout gives {written[name]} numbers of {name}")
  return nest(params), rows


def export_tensors(
  params: shapes.PyTree,
  layout: Iterable[Tensor],
) -> dict[str, NDArray[Any]]:
  """The tensors of another format from our parameters, each of them once."""
  flat = flatten(params)
  result = {}
  for tensor in layout:
    parts = [
      _turn(np.asarray(flat[piece.parameter])[_index(piece)], tensor)
      for piece in tensor.pieces
    ]
    values = np.concatenate(parts, axis=tensor.axis)
    result[tensor.name] = np.ascontiguousarray(values)
  return result


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The tree of parameters that paths describe."""
  result: dict[str, Any] = {}
  for path, value in flat.items():
    *parents, name = path.split("/")
    node = result
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = value
  return result


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Paths and values of a tree of parameters."""
  result = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      result.update(flatten(value, f"{prefix}{name}/"))
    else:
      result[f"{prefix}{name}"] = value
  return result


def _check_names(tensors, layout, ignored):
  """Nothing may be missing and nothing left over."""
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
  """The values, once all names that stand for them agree."""
  found = [name for name in (tensor.name, *tensor.aliases) if name in tensors]
  values = np.asarray(tensors[found[0]])
  for name in found[1:]:
    if not np.array_equal(values, tensors[name]):
      raise errors.UserError(
        f"{found[0]} and {name} should be shared but have different values; "
        "the source's configuration says otherwise than its tensors."
      )
  return values


def _check_shape(tensor: Tensor, shape, expected) -> None:
  wanted = _file_shape(tensor, tensor.pieces, expected)
  if shape != wanted:
    raise errors.UserError(
      f"{tensor.name} has the shape {shape}, but the rest of the source calls "
      f"for {wanted}; its configuration is of another model."
    )


def _file_shape(tensor: Tensor, pieces, expected) -> tuple[int, ...]:
  """The shape that some pieces have side by side in the file."""
  parts = []
  for piece in pieces:
    empty = np.broadcast_to(np.float32(0), expected[piece.parameter])
    parts.append(_turn(empty[_index(piece)], tensor).shape)
  shape = list(parts[0])
  shape[tensor.axis] = sum(part[tensor.axis] for part in parts)
  return tuple(shape)


def _turn(values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
  """From the file's orientation to ours, or back; it is its own inverse."""
  if tensor.transpose:
    values = values.T
  return values[::-1] if tensor.reverse else values


def _index(piece: Piece):
  return ... if piece.at is None else piece.at
