"""Adapters of low rank beside matrices that stay as they are (Hu et al. 2021).

A layer's matrix W [I, O] becomes W + (alpha / rank) A B (section 4.1), where
A [I, rank] and B [rank, O] are trained in its place. They stand beside W in the
tree of parameters: `layers/0/attention/query_lora_a` and `query_lora_b`. Like
W they are stacked, with the turns of the pattern in front.

The sum is formed before the network reads, so that every mixer can have
adapters, none knows of them, and training computes what evaluation does. The
price is the gradient of W, from which those of A and B follow: about a tenth of
an update with adapters beside the projections of attention.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model import pattern

A = "_lora_a"
B = "_lora_b"
_NUM_AXES = 3  # Of matrices: turns, inputs and outputs.

Flat = Mapping[str, shapes.PyTree]  # Arrays, or shapes, by their paths.


class Settings(NamedTuple):
  """The settings that define adapters, apart from their parameters."""

  rank: int
  alpha: float
  targets: tuple[str, ...]  # Names of matrices, such as "query".

  @property
  def scale(self) -> float:
    """The factor on the product of an adapter's matrices."""
    return self.alpha / self.rank


def settings(train: schema.TrainConfig) -> Settings | None:
  """The adapters of a run; None if it trains all parameters."""
  lora = train.lora
  if not lora.rank:
    return None
  return Settings(lora.rank, lora.alpha, tuple(sorted({*lora.targets})))


def from_json(stored: Mapping[str, Any] | None) -> Settings | None:
  """The settings as a checkpoint keeps them, which are `_asdict`."""
  if stored is None:
    return None
  settings = Settings(**stored)
  return settings._replace(targets=tuple(settings.targets))


def matrix_of(path: str) -> str:
  """The path of the matrix that an adapter's matrix is beside."""
  return path.removesuffix(A).removesuffix(B)


def shape_of(path: str, matrix: tuple[int, ...], rank: int) -> tuple[int, ...]:
  """The shape of an adapter's matrix, from that of the one it is beside."""
  turns, num_inputs, num_outputs = matrix
  if path.endswith(A):
    return (turns, num_inputs, rank)
  return (turns, rank, num_outputs)


def adapted(params: Flat, targets: Iterable[str]) -> list[str]:
  """The paths of the matrices that get adapters, sorted.

  Raises:
    UserError: no layer has a matrix of some name.
  """
  by_name: dict[str, list[str]] = {}
  for path, leaf in params.items():
    name = path.rpartition("/")[2]
    has_axes = leaf.ndim == _NUM_AXES and path.startswith("layers/")
    if has_axes and not parameters.is_bias_or_scale(name):
      by_name.setdefault(name, []).append(path)
  for name in targets:
    if name not in by_name:
      raise errors.UserError(
        f"train.lora.targets has {name!r}, but the matrices of the layers are "
        f"{', '.join(sorted(by_name))}; name some of these."
      )
  return sorted(path for name in targets for path in by_name[name])


def draw(
  key: jax.Array, params: Flat, adapters: Settings
) -> dict[str, jax.Array]:
  """New adapters, whose products are zero, by their paths.

  A is uniform within 1 / sqrt(I), as PEFT draws it, and B is zero.
  """
  result = {}
  for index, path in enumerate(adapted(params, adapters.targets)):
    of_a, of_b = (
      shape_of(path + name, params[path].shape, adapters.rank)
      for name in (A, B)
    )
    bound = 1 / math.sqrt(of_a[1])
    key_of_a = jax.random.fold_in(key, index)
    result[path + A] = jax.random.uniform(
      key_of_a, of_a, minval=-bound, maxval=bound
    )
    result[path + B] = jnp.zeros(of_b)
  return result


def nested(flat: Flat, config: schema.ModelConfig) -> shapes.PyTree:
  """The tree of what is trained, by its paths.

  It has every place of the pattern, also those of which nothing is trained, so
  that places count as in a whole model.
  """
  tree = traverse_util.unflatten_dict(dict(flat), sep="/")
  layers = tree.setdefault("layers", {})
  for place in range(len(pattern.places(config))):
    layers.setdefault(str(place), {})
  return tree


def with_adapters(
  params: shapes.PyTree, base: shapes.PyTree | None, train: schema.TrainConfig
) -> shapes.PyTree:
  """The parameters that the network reads with, from those that are trained."""
  adapters = settings(train)
  if adapters is None:
    return params
  return merged(base, params, adapters.scale)


def merged(
  base: shapes.PyTree, trained: shapes.PyTree, scale: float
) -> shapes.PyTree:
  """The parameters of the whole model.

  Args:
    base: what stays as it is.
    trained: adapters, and whole arrays that the base does not have.
    scale: of the products of adapters.
  """
  result = traverse_util.flatten_dict(base, sep="/")
  flat = traverse_util.flatten_dict(trained, sep="/")
  for path, leaf in flat.items():
    if path.endswith(B):
      continue
    if path.endswith(A):
      path = matrix_of(path)
      leaf = _adapt(result[path], leaf, flat[path + B], scale)
    result[path] = leaf
  return traverse_util.unflatten_dict(result, sep="/")


@jax.jit
def _adapt(
  matrix: jax.Array, a: jax.Array, b: jax.Array, scale: float
) -> jax.Array:
  # With all digits, as a parameter: TPUs would round to bfloat16.
  product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
  return matrix + scale * product
