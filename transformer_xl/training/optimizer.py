"""Learning-rate schedules and the chain of gradient transformations."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.training import rate_factors

_ADAM_B1 = 0.9  # Decay per update of Adam's mean of gradients.
_LAMB_NORM_LIMIT = 10.0  # As in NVIDIA's program.
# With this root mean square of an update, Muon takes Adam's learning rates (Liu
# et al. 2025, equation 4).
_MUON_RMS = 0.2
# Arrays of layers that are no matrices, though they have two axes of their own:
# the ends of their names.
_NO_MATRICES = ("bias", "convolution", "distances", "positions", "vectors")
# Share of the updates in which the learning rate of "wsd" falls.
_WSD_DECAY = 0.2


def learning_rate_schedule(config: schema.TrainConfig) -> optax.Schedule:
  """The learning rate of update k, counted from 0.

  Formulas and sources: docs/specification.md, section 15.
  """
  peak = config.learning_rate
  warmup = config.warmup_steps
  schedule = config.schedule

  def after_warmup(update: jax.Array) -> jax.Array:
    last = config.decay_steps
    floor = config.min_learning_rate_ratio
    done = jnp.clip((update - warmup) / (last - warmup), 0, 1)
    if schedule == "cosine":
      wave = jnp.cos(jnp.pi * done)
      return peak * ((1 - floor) * (0.5 * (1 + wave)) + floor)
    if schedule == "linear":
      return peak * (1 - (1 - floor) * done)
    if schedule == "wsd":
      left = jnp.minimum((last - update) / (_WSD_DECAY * last), 1)
      return peak * (floor + (1 - floor) * jnp.maximum(left, 0))
    if schedule == "inverse_sqrt":
      start = max(warmup, 1)
      return peak * jnp.sqrt(start / jnp.maximum(update, start))
    return jnp.full_like(update, peak)

  def rate(count: jax.Array) -> jax.Array:
    update = jnp.asarray(count, jnp.float32)
    warm = peak * (update + 1) / max(warmup, 1)
    return jnp.where(update < warmup, warm, after_warmup(update))

  return rate


def make_optimizer(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Clipping by the global norm, then the optimizer with its schedule.

  Frozen arrays have no state. Their updates are meaningless until
  `scale_update` sets them to zero.
  """
  adam = optax.scale_by_adam(_ADAM_B1, config.adam_b2, config.adam_epsilon)
  decay = optax.add_decayed_weights(config.weight_decay, decayed_parameters)
  parts = {
    "adam": [adam],
    "adamw": [adam, decay],
    "lamb": [adam, decay, _scale_by_trust_ratio()],
    "muon": [_muon(adam), decay],
    "sgd": [optax.identity()],
  }[config.optimizer]
  rate = optax.scale_by_learning_rate(learning_rate_schedule(config))
  main = optax.chain(*parts, rate)
  if rate_factors.freezes(config):
    trained = functools.partial(rate_factors.trained, config=config)
    main = optax.masked(main, trained)
  return optax.chain(_clip(config), main)


def _muon(
  adam: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Muon (Jordan et al. 2024) for the matrices of layers, Adam for the rest.

  The momentum of each matrix of each layer is replaced by its nearest
  orthogonal one. Tables, biases and the softmax are Adam's, as the authors
  advise.
  """

  def is_matrix(path: jax.tree_util.KeyPath, leaf: jax.Array) -> bool:
    name, _ = parameters.split_name(path[-1].key)
    if name.endswith(_NO_MATRICES):
      return False
    return path[0].key == "layers" and leaf.ndim == 3

  def labels(params: shapes.PyTree) -> shapes.PyTree:
    return jax.tree.map_with_path(
      lambda path, leaf: "muon" if is_matrix(path, leaf) else "adam", params
    )

  def axes(params: shapes.PyTree) -> shapes.PyTree:
    """The layers are stacked in front of rows and columns."""
    numbers = optax.contrib.MuonDimensionNumbers(1, 2)
    return jax.tree.map(lambda _: numbers, params)

  def scale(update: shapes.PyTree, params: shapes.PyTree) -> shapes.PyTree:
    del params
    return jax.tree.map(
      lambda leaf: _MUON_RMS * max(leaf.shape[1:]) ** 0.5 * leaf, update
    )

  muon = optax.chain(
    optax.contrib.scale_by_muon(weight_dimension_numbers=axes),
    optax.stateless(scale),
  )
  return optax.partition({"muon": muon, "adam": adam}, labels)


def _clip(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Clips, then adds the L2 penalty; no state, so a resumed run may change."""
  clip = optax.clip_by_global_norm(config.clip_norm or jnp.inf)

  def update(gradient: shapes.PyTree, params: shapes.PyTree) -> shapes.PyTree:
    if config.clip_norm:
      gradient, _ = clip.update(gradient, optax.EmptyState())
    if config.l2_penalty:
      gradient = jax.tree.map(
        lambda leaf, value: leaf + config.l2_penalty * value, gradient, params
      )
    return gradient

  return optax.stateless(update)


def scale_update(
  update: shapes.PyTree,
  config: schema.TrainConfig,
  count: jax.Array,
  factor: float | jax.Array,
) -> shapes.PyTree:
  """Scales an update, as factors on the learning rate would.

  One factor is for all parameters, one for the embedding tables, and others for
  the parameters whose names match patterns. The update of every optimizer is
  linear in the learning rate.

  Args:
    update: at the rate of `learning_rate_schedule`.
    config: of training.
    count: of the update, from 0; a scalar.
    factor: multiplies the rates of all parameters; a scalar.
  """
  result = jax.tree.map(lambda leaf: factor * leaf, update)
  if config.learning_rate_factors:
    factors = rate_factors.of(update, config)
    result = jax.tree.map(jnp.multiply, result, factors)
  if config.embedding_rate_factor == 1:
    return result
  tables = dataclasses.replace(
    config,
    learning_rate=config.learning_rate * config.embedding_rate_factor,
    min_learning_rate_ratio=(
      config.min_learning_rate_ratio / config.embedding_rate_factor
    ),
  )
  rate = learning_rate_schedule(config)(count)
  own = learning_rate_schedule(tables)(count) / jnp.where(rate == 0, 1, rate)
  embedding = {
    name: own * leaf if name.startswith("table") else leaf
    for name, leaf in result["embedding"].items()
  }
  return {**result, "embedding": embedding}


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
    params: shapes.PyTree = None,
  ) -> tuple[shapes.PyTree, optax.OptState]:
    norms = _norms(params)
    lengths = _norms(updates)

    def scale(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
      group = _group(path)
      norm = jnp.minimum(norms[group], _LAMB_NORM_LIMIT)
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


def decayed_parameters(params: shapes.PyTree) -> shapes.PyTree:
  """True for matrices and tables, False for biases and layer norms."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: not path[-1].key.endswith(("bias", "scale")), params
  )
