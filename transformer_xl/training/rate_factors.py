"""Factors on the learning rate of parameters whose names match patterns.

A parameter has the name of its path, such as `softmax/bias`. The layers of a
place of the pattern are stacked in one array, and each has a name of its own:
`layers/0/attention/query` is the first layer's. A factor of 0 freezes.
"""

import difflib
import re

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema


def of(params: shapes.PyTree, config: schema.TrainConfig) -> shapes.PyTree:
  """The factor of each parameter, as NumPy arrays that broadcast to it.

  The first pattern of `train.learning_rate_factors` that matches the whole name
  counts; without one the factor is 1.

  Raises:
    UserError: a pattern is the first for no parameter.
  """
  rules = _rules(config)
  unused = {pattern for pattern, _ in rules}
  seen: list[str] = []

  def find(name: str) -> float:
    seen.append(name)
    for pattern, factor in rules:
      if re.fullmatch(pattern, name):
        unused.discard(pattern)
        return factor
    return 1.0

  factors = jax.tree.map(np.vectorize(find, otypes=[np.float32]), names(params))
  if unused:
    pattern = min(unused)
    near = difflib.get_close_matches(pattern, seen, n=3, cutoff=0)
    raise errors.UserError(
      f"train.learning_rate_factors: {pattern!r} matches no parameter that an "
      f"earlier pattern leaves; near names are {', '.join(near)}: correct it, "
      "as in 'layers/.*=0.1'."
    )
  return factors


def names(params: shapes.PyTree) -> shapes.PyTree:
  """The names of each parameter, as NumPy arrays that broadcast to it.

  An array of several layers has a name for each of them.
  """
  num_places = len(params.get("layers", ()))

  def names_of(path: jax.tree_util.KeyPath, leaf: jax.Array) -> np.ndarray:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if path[0].key != "layers":
      return np.array(name)
    first, place, rest = name.split("/", maxsplit=2)
    layers = [turn * num_places + int(place) for turn in range(leaf.shape[0])]
    found = np.array([f"{first}/{layer}/{rest}" for layer in layers])
    return found.reshape(-1, *[1] * (leaf.ndim - 1))

  return jax.tree.map_with_path(names_of, params)


def _rules(config: schema.TrainConfig) -> list[tuple[str, float]]:
  """Patterns and factors, from rules such as `layers/.*=0.1`."""
  split = (rule.rpartition("=") for rule in config.learning_rate_factors)
  return [(pattern, float(factor)) for pattern, _, factor in split]


def freezes(config: schema.TrainConfig) -> bool:
  """Whether some pattern has the factor 0."""
  return any(factor == 0 for _, factor in _rules(config))


def frozen_names(
  params: shapes.PyTree, config: schema.TrainConfig
) -> list[str]:
  """The names of all parameters that are frozen, sorted."""
  if not freezes(config):
    return []
  found: list[str] = []
  factors = jax.tree.leaves(of(params, config))
  all_names = jax.tree.leaves(names(params))
  for own_names, factor in zip(all_names, factors, strict=True):
    found += own_names[factor == 0].tolist()
  return sorted(found)


def trained(params: shapes.PyTree, config: schema.TrainConfig) -> shapes.PyTree:
  """False for each array that is frozen as a whole."""
  return jax.tree.map(lambda factor: bool(factor.any()), of(params, config))


def without_frozen(
  gradient: shapes.PyTree, config: schema.TrainConfig
) -> shapes.PyTree:
  """Sets the gradient of what is frozen to zero, also for its norm."""
  if not freezes(config):
    return gradient

  def keep(leaf: jax.Array, factor: np.ndarray) -> jax.Array:
    if not factor.any():  # No product, so that nothing of it is computed.
      return jnp.zeros_like(leaf)
    return leaf if factor.all() else jnp.where(factor != 0, leaf, 0)

  return jax.tree.map(keep, gradient, of(gradient, config))
