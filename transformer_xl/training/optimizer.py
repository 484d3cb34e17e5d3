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
  """A function from an update, counted from 0, to its learning rate.

  Formulas and sources: docs/specification.md, section 15.
  """
  peak = config.learning_rate
  warmup = config.warmup_steps
  schedule = registry.schedules[config.schedule]

  def rate(count: jax.Array) -> jax.Array:
    update = jnp.asarray(count, jnp.float32)
    # Dividing the peak first gives the same bits whether it is traced or not.
    warm = (update + 1) * (peak / max(warmup, 1))
    return jnp.where(update < warmup, warm, schedule.rate(config, update))

  return rate


def make_optimizer(
  config: schema.TrainConfig,
) -> optax.GradientTransformationExtraArgs:
  """Clipping by the global norm, the optimizer, and its learning rates.

  Its `update` takes a `rate_factor`, a scalar, which multiplies all rates.
  Frozen arrays have no state, and updates of zero.
  """
  main = registry.optimizers[config.optimizer].make(config)
  if rate_factors.freezes(config):
    trained = functools.partial(rate_factors.trained, config=config)
    main = optax.masked(main, trained)
  return optax.chain(_clip_and_penalize(config), main, scale_by_rates(config))


def _clip_and_penalize(
  config: schema.TrainConfig,
) -> optax.GradientTransformation:
  """Clips the gradient, then adds that of the L2 penalty.

  There is no state, so that a resumed run may change both settings.
  """

  def update(gradient: shapes.PyTree, params: shapes.PyTree) -> shapes.PyTree:
    if config.clip_norm:
      clip = optax.clip_by_global_norm(config.clip_norm)
      gradient, _ = clip.update(gradient, optax.EmptyState())
    if config.l2_penalty:
      gradient = jax.tree.map(
        lambda leaf, value: leaf + config.l2_penalty * value, gradient, params
      )
    return gradient

  return optax.stateless(update)


def scale_by_rates(
  config: schema.TrainConfig,
) -> optax.GradientTransformationExtraArgs:
  """Scales by minus the learning rate of each parameter.

  The tables of the embedding have a schedule with another peak and the same
  end; parameters whose names match patterns have a factor on their rate. The
  state counts updates, from 0.
  """
  tables = dataclasses.replace(
    config,
    learning_rate=config.learning_rate * config.embedding_rate_factor,
    min_learning_rate_ratio=(
      config.min_learning_rate_ratio / config.embedding_rate_factor
    ),
  )

  def init(params: shapes.PyTree) -> optax.ScaleByScheduleState:
    del params
    return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

  def update(
    updates: shapes.PyTree,
    state: optax.ScaleByScheduleState,
    params: shapes.PyTree | None = None,
    *,
    rate_factor: float | jax.Array = 1.0,
    **unused: object,
  ) -> tuple[shapes.PyTree, optax.ScaleByScheduleState]:
    del params, unused
    rate = learning_rate_schedule(config)(state.count)
    rate_of_tables = learning_rate_schedule(tables)(state.count)

    def scale(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
      is_table = path[0].key == "embedding" and path[1].key.startswith("table")
      own_rate = rate_of_tables if is_table else rate
      return -own_rate * leaf * rate_factor

    scaled = jax.tree.map_with_path(scale, updates)
    if config.learning_rate_factors:
      factors = rate_factors.of(updates, config)
      scaled = jax.tree.map(jnp.multiply, scaled, factors)
    return scaled, optax.ScaleByScheduleState(state.count + 1)

  return optax.GradientTransformationExtraArgs(init, update)
