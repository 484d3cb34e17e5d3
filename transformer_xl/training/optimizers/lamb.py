"""LAMB (You et al. 2020), for large batches."""

import collections

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer

_NORM_LIMIT = 10.0  # As in NVIDIA's program.


@registry.optimizers.register("lamb")
class Lamb(optimizer.Optimizer):
  """AdamW whose updates have lengths relative to their parameters'."""

  uses = ("weight_decay", "adam_b2", "adam_epsilon")

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The update of AdamW times the trust ratios."""
    return optax.chain(
      optimizer.scale_by_adam(config),
      optimizer.decay_weights(config),
      _scale_by_trust_ratio(),
    )


def _scale_by_trust_ratio() -> optax.GradientTransformation:
  """The trust ratio of LAMB (You et al. 2020, algorithm 2).

  Each array of each layer has a ratio, and query, key and value have one
  together, because published programs keep them in one array. The norm of the
  parameters counts as 10 at most. `optax.scale_by_trust_ratio`, whose state
  this has, takes one ratio for all layers that an array stacks.
  """

  def update(
    updates: shapes.PyTree,
    state: optax.OptState,
    params: optax.Params | None = None,
  ) -> tuple[shapes.PyTree, optax.OptState]:
    norms = _norms(params)
    lengths = _norms(updates)

    def scale(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
      group = _group(path)
      norm = jnp.minimum(norms[group], _NORM_LIMIT)
      length = lengths[group]
      is_zero = (norm == 0) | (length == 0)
      ratio = jnp.where(is_zero, 1.0, norm / jnp.where(is_zero, 1.0, length))
      return leaf * jnp.expand_dims(ratio, tuple(range(ratio.ndim, leaf.ndim)))

    return jax.tree_util.tree_map_with_path(scale, updates), state

  return optax.GradientTransformation(optax.scale_by_trust_ratio().init, update)


def _norms(tree: shapes.PyTree) -> dict[str, jax.Array]:
  """L2 norms by group: scalars, or one for each layer of stacked arrays."""
  squares: dict[str, jax.Array] = collections.defaultdict(lambda: jnp.zeros(()))
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    first = 1 if path[0].key == "layers" else 0
    axes = tuple(range(first, leaf.ndim))
    squares[_group(path)] += jnp.sum(jnp.square(leaf), axes)
  return {group: jnp.sqrt(square) for group, square in squares.items()}


def _group(path: jax.tree_util.KeyPath) -> str:
  """The name of the arrays that share a trust ratio."""
  name = jax.tree_util.keystr(path, simple=True, separator="/")
  outer, _, last = name.rpartition("/")
  return f"{outer}/qkv" if last in ("query", "key", "value") else name
