"""Learning-rate schedules and the chain of gradient transformations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training import rate_factors


def learning_rate_schedule(config: schema.TrainConfig) -> optax.Schedule:
  """The learning rate of update k, counted from 0.

  Formulas and sources: docs/specification.md, section 15.
  """
  peak = config.learning_rate
  warmup = config.warmup_steps
  schedule = registry.schedules[config.schedule]

  def rate(count: jax.Array) -> jax.Array:
    update = jnp.asarray(count, jnp.float32)
    warm = peak * (update + 1) / max(warmup, 1)
    return jnp.where(update < warmup, warm, schedule.rate(config, update))

  return rate


def make_optimizer(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Clipping by the global norm, then the optimizer with its schedule.

  Frozen arrays have no state. Their updates are meaningless until
  `scale_update` sets them to zero.
  """
  optimizer = registry.optimizers[config.optimizer]
  rate = optax.scale_by_learning_rate(learning_rate_schedule(config))
  main = optax.chain(optimizer.make(config), rate)
  if rate_factors.freezes(config):
    trained = functools.partial(rate_factors.trained, config=config)
    main = optax.masked(main, trained)
  return optax.chain(_clip(config), main)


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
