"""Foreign checkpoints, and how their tensors map to our parameters.

A format reads its files into a `Source`. Its layout lists every tensor that it
stores for a model, and works in both directions: the same list imports, exports
and maps gradients.
"""

import dataclasses
import functools
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import evaluation_fields
from transformer_xl.config import schema
from transformer_xl.model import network

# Published models have one kind of layer, so their pattern has one place.
LAYERS = "layers/0"
QKV = ("attention/query", "attention/key", "attention/value")
NUM_NAMED = 4  # Tensor names that an error lists at most.


Fields = dict[str, Any]  # Of a configuration, by name.


class Lengths(NamedTuple):
  """Lengths of the source's evaluation, in tokens."""

  segment_len: int
  mem_len: int
  clamp_len: int  # 0 for no clamping.
  same_length: bool


def lengths_of(
  score: evaluation_fields.ScoreConfig, evaluation: schema.EvalConfig
) -> Lengths:
  """The lengths that an export states: those with which texts are scored."""
  return Lengths(
    score.segment_len,
    score.mem_len,
    evaluation.clamp_len,
    evaluation.same_length,
  )


class Tensor(NamedTuple):
  """One tensor of the other format: our parameters, concatenated."""

  name: str
  parameters: tuple[str, ...]  # Paths, such as "layers/0/attention/query".
  at: int | slice | EllipsisType = ...  # A layer or some rows of each.
  axis: int = 0  # Axis of the concatenation, in the file.
  transpose: bool = False
  reverse: bool = False  # Reversed rows: PyTorch's clusters.
  aliases: tuple[str, ...] = ()  # Other names that may hold the same values.


class Source(NamedTuple):
  """A foreign checkpoint."""

  tensors: Mapping[str, np.ndarray]  # By the names of the format.
  files: tuple[str, ...]  # Paths of the files with the tensors.
  model: Fields  # Fields of our `ModelConfig`.
  lengths: Lengths | None  # None if the source does not state them.
  vocabulary: str | None  # A file or folder beside the weights, if any.
  # Fields of our configuration, by group, that the format has no name for.
  own: Mapping[str, object] = types.MappingProxyType({})
  # Where the tensors of a format depend on more than our model; else the
  # format's own.
  layout: Callable[[schema.ModelConfig], Iterable[Tensor]] | None = None


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
  params = network.abstract_params(config)
  flat = traverse_util.flatten_dict(params, sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One of our parameters, in float32, which is read when it is asked for.

  A file may be half as large as its numbers in float32, and a machine too small
  for these. `np.asarray` reads one array from the file, which keeps none.
  """

  name: str
  all_shapes: Mapping[str, tuple[int, ...]]  # Of all parameters, by name.
  layout: Sequence[Tensor]  # Those with numbers of this one.
  tensors: Mapping[str, np.ndarray]

  @property
  def shape(self) -> tuple[int, ...]:
    """Its shape, which is known before it is read."""
    return self.all_shapes[self.name]

  @property
  def size(self) -> int:
    """The number of its numbers."""
    return math.prod(self.shape)

  def __array__(
    self, dtype: np.dtype | None = None, copy: bool | None = None
  ) -> np.ndarray:
    """Reads it.

    Raises:
      UserError: a tensor is of a wrong shape or not of finite numbers, or
        tensors that should be shared differ.
    """
    del dtype, copy
    result: np.ndarray | None = None
    for tensor in self.layout:
      values = _shared_values(self.tensors, tensor)
      outlines = _views(_outlines(self.all_shapes, tensor), tensor)
      sizes = [outline.shape[tensor.axis] for outline in outlines]
      shape = _shape(outlines, tensor)
      if values.shape != shape:
        raise errors.UserError(
          f"{tensor.name} has the shape {values.shape}, but the rest of the "
          f"source requires {shape}; its configuration is of another model."
        )
      if result is None:
        result = np.empty(self.shape, np.float32)
      index = tensor.parameters.index(self.name)
      (view,) = _views(
        {self.name: result}, tensor._replace(parameters=(self.name,))
      )
      parts = np.split(values, np.cumsum(sizes)[:-1], axis=tensor.axis)
      with np.errstate(over="ignore"):  # What is too large for float32 is inf.
        view[...] = parts[index]
      num_lost = view.size - np.count_nonzero(np.isfinite(view))
      if num_lost:
        raise errors.UserError(
          f"{num_lost} of the {view.size} numbers of {tensor.name} are infinite"
          " or NaN: the model diverged, or its file is damaged; fetch it again,"
          " or import another checkpoint."
        )
    assert result is not None  # `open_tensors` saw that it has tensors.
    return result


def open_tensors(
  tensors: Mapping[str, np.ndarray],
  layout: Iterable[Tensor],
  config: schema.ModelConfig,
  *,
  ignored: str,
) -> tuple[shapes.PyTree, list[Mapped]]:
  """Finds the tensors of another format that make up our parameters.

  Names that match the pattern `ignored` may be there, but hold no parameters.

  Returns:
    The parameters, each a `Parameter`, and the destination of each tensor.

  Raises:
    UserError: a tensor is missing or unused.
  """
  if config.num_layers > len(tensors):  # Too many names would be listed.
    raise errors.UserError(
      f"the source's configuration has {config.num_layers} layers, but there "
      f"are only {len(tensors)} tensors; restore its configuration."
    )
  layout = list(layout)
  _check_names(tensors, layout, ignored)
  wanted = parameter_shapes(config)
  missing = {name: math.prod(shape) for name, shape in wanted.items()}
  own: dict[str, list[Tensor]] = {name: [] for name in wanted}
  rows = []
  for tensor in layout:
    outlines = _views(_outlines(wanted, tensor), tensor)
    for name, outline in zip(tensor.parameters, outlines, strict=True):
      missing[name] -= outline.size
      own[name].append(tensor)
    shape = _shape(outlines, tensor)
    rows.append(Mapped(tensor.name, shape, tensor.parameters))
  if any(missing.values()):
    raise ValueError(f"the layout leaves out {missing} numbers")
  opened = {name: Parameter(name, wanted, own[name], tensors) for name in own}
  return traverse_util.unflatten_dict(opened, sep="/"), rows


def _outlines(
  wanted: Mapping[str, tuple[int, ...]], tensor: Tensor
) -> dict[str, np.ndarray]:
  """Arrays of the shapes of a tensor's parameters, which take no memory."""
  try:
    return {
      name: np.broadcast_to(np.float32(0), wanted[name])
      for name in tensor.parameters
    }
  except ValueError as error:  # Beyond 2^63 bytes.
    raise errors.UserError(
      f"the source's configuration is of a model that does not fit into memory "
      f"({error}); restore it, or use a larger machine."
    ) from None


def _shape(outlines: Sequence[np.ndarray], tensor: Tensor) -> tuple[int, ...]:
  """The shape of a tensor in the file."""
  shape = [*outlines[0].shape]
  shape[tensor.axis] = sum(outline.shape[tensor.axis] for outline in outlines)
  return tuple(shape)


def export_tensors(
  params: shapes.PyTree, layout: Iterable[Tensor]
) -> dict[str, np.ndarray]:
  """Converts our parameters to the tensors of another format, each once."""
  flat = traverse_util.flatten_dict(params, sep="/")
  flat = {name: np.asarray(values) for name, values in flat.items()}
  return {
    t.name: np.ascontiguousarray(np.concatenate(_views(flat, t), axis=t.axis))
    for t in layout
  }


def _check_names(
  tensors: Mapping[str, np.ndarray], layout: Sequence[Tensor], ignored: str
) -> None:
  names = [(tensor.name, *tensor.aliases) for tensor in layout]
  known = {name for group in names for name in group}
  missing = [group[0] for group in names if tensors.keys().isdisjoint(group)]
  unused = [n for n in tensors if n not in known and not re.search(ignored, n)]
  if missing or unused:
    raise errors.UserError(
      "the tensors in the source do not make up this model: "
      f"{_count(missing)} missing, {_count(unused)} unused; check --format, "
      "and that the source is a language model with its softmax."
    )


def _count(names: list[str]) -> str:
  if not names:
    return "none"
  named = names[:NUM_NAMED]
  if len(names) > NUM_NAMED:
    named.append("...")
  return f"{len(names)} ({', '.join(named)})"


def _shared_values(
  tensors: Mapping[str, np.ndarray], tensor: Tensor
) -> np.ndarray:
  found = [name for name in (tensor.name, *tensor.aliases) if name in tensors]
  values = np.asarray(tensors[found[0]])
  for name in found[1:]:
    if not np.array_equal(values, tensors[name]):
      raise errors.UserError(
        f"{found[0]} and {name} should be shared but have different values; "
        "the source's configuration contradicts its tensors."
      )
  return values


def _views(
  params: Mapping[str, np.ndarray], tensor: Tensor
) -> list[np.ndarray]:
  """Views of our parameters in the orientation of the file."""
  views = [params[name][tensor.at] for name in tensor.parameters]
  views = [view.T if tensor.transpose else view for view in views]
  return [view[::-1] if tensor.reverse else view for view in views]


def find(folder: str, names: Iterable[str]) -> str | None:
  """Returns the path of the first of the names that exists in a folder."""
  paths = (os.path.join(folder, name) for name in names)
  return next(filter(os.path.exists, paths), None)


def shared_projections(style: str, count: int) -> list[bool]:
  """Which clusters of the softmax share projections, by `tie_projections`."""
  return [style == "all"] + [style != "none"] * (count - 1)


def tie_projections(tied: Sequence[bool]) -> str:
  """Returns the `tie_projections` of a model whose clusters are tied like this.

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
