"""Which parameters of a model another model has, layer by layer.

A layer takes the arrays of the layer with its number that have the same name
and shape; those of a mixer may come from another mixer.
"""

import jax
import jax.numpy as jnp
from flax import traverse_util

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import network
from transformer_xl.model import pattern

# The path of an array in the old model, and the layer in it. None if the old
# model has no such array, and if the array is of no layer.
Source = tuple[str | None, int | None]


def sources(
  old: schema.ModelConfig, new: schema.ModelConfig
) -> dict[str, list[Source]]:
  """Where the arrays of a model come from, by their paths.

  There is one source for each layer of an array. An array outside the layers
  counts as one.
  """
  wanted = _shapes_by_path(new)
  given = _shapes_by_path(old)
  places = pattern.places(new)
  old_places = pattern.places(old)
  result: dict[str, list[Source]] = {}
  for name, shape in wanted.items():
    if not name.startswith("layers/"):
      result[name] = [(name if given.get(name) == shape else None, None)]
      continue
    _, place, rest = name.split("/", maxsplit=2)
    result[name] = []
    for turn in range(shape[0]):
      number = turn * len(places) + int(place)
      old_turn, old_place = divmod(number, len(old_places))
      own = f"{places[int(place)].name}/"
      theirs = rest
      if rest.startswith(own):
        theirs = f"{old_places[old_place].name}/{rest.removeprefix(own)}"
      source = f"layers/{old_place}/{theirs}"
      fits = source in given and given[source][1:] == shape[1:]
      is_there = fits and number < old.num_layers
      result[name].append((source, old_turn) if is_there else (None, None))
  return result


def whole(old: schema.ModelConfig, new: schema.ModelConfig) -> list[str]:
  """The paths of a model's arrays that another model has all layers of."""
  return [
    name
    for name, layers in sources(old, new).items()
    if all(path is not None for path, _ in layers)
  ]


def taken(
  params: shapes.PyTree, old: schema.ModelConfig, new: schema.ModelConfig
) -> dict[str, jax.Array]:
  """The arrays of a model that `whole` names, by their paths.

  Args:
    params: of the other model.
    old: the other model.
    new: the model.
  """
  given = traverse_util.flatten_dict(params, sep="/")
  result = {}
  all_sources = sources(old, new)
  for name in whole(old, new):
    found = [(str(path), layer) for path, layer in all_sources[name]]
    path, layer = found[0]
    in_order = [(path, turn) for turn in range(len(given[path]))]
    if layer is None or found == in_order:
      result[name] = given[path]
    else:
      result[name] = jnp.stack([given[path][layer] for path, layer in found])
  return result


def missing(old: schema.ModelConfig, new: schema.ModelConfig) -> list[str]:
  """The parts of a model that another one has not, as `layers/3/attention`."""
  num_places = len(pattern.places(new))
  found: dict[str, None] = {}
  for name, layers in sources(old, new).items():
    for turn, (source, _) in enumerate(layers):
      if source is not None:
        continue
      if name.startswith("layers/"):
        _, place, part, *_ = name.split("/")
        part = f"layers/{turn * num_places + int(place)}/{part}"
      else:
        part = name
      found[part] = None
  return sorted(found)


def _shapes_by_path(model: schema.ModelConfig) -> dict[str, tuple[int, ...]]:
  flat = traverse_util.flatten_dict(network.abstract_params(model), sep="/")
  return {name: leaf.shape for name, leaf in flat.items()}
