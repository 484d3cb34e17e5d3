"""Learning-rate schedules and the chain of gradient transformations."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from transformer_xl import shapes
from transformer_xl.config import schema


def learning_rate_schedule(config: schema.TrainConfig) -> optax.Schedule:
  """The learning rate of update k, counted from 0.

  Formulas and sources: docs/specification.md, section 15.

  `schedule_convention` decides how the rate warms up over W updates:

  - "next_step": by (k+1)/W, so that the first update has an effect.
  - "tensorflow": by k/W, so that the first update has rate 0.
  - "pytorch": by k/W, except that the first update has the full rate (unless
    the schedule is the inverse square root); its cosine counts from 0, not W.
  """
  peak, warmup = config.learning_rate, config.warmup_steps
  convention, schedule = config.schedule_convention, config.schedule
  published = convention == "pytorch"

  def after_warmup(update):
    if schedule == "cosine":
      start = 0 if published else warmup
      done = jnp.clip((update - start) / (config.decay_steps - start), 0, 1)
      wave, floor = jnp.cos(jnp.pi * done), config.min_learning_rate_ratio
      return peak * ((1 - floor) * (0.5 * (1 + wave)) + floor)
    if schedule == "inverse_sqrt":  # The PyTorch code reaches peak / sqrt(W).
      start = 1 if published else max(warmup, 1)
      return peak * jnp.sqrt(start / jnp.maximum(update, start))
    # In the PyTorch code the constant is the last rate of the warm-up.
    share = (warmup - 1) / warmup if published and warmup else 1.0
    return jnp.full_like(update, peak * share)

  def rate(count: jax.Array) -> jax.Array:
    update = jnp.asarray(count, jnp.float32)
    done = update + 1 if convention == "next_step" else update
    warm = peak * done / max(warmup, 1)
    if published and schedule == "inverse_sqrt":
      warm *= max(warmup, 1) ** -0.5
    elif published:
      warm = jnp.where(update == 0, peak, warm)
    return jnp.where(update < warmup, warm, after_warmup(update))

  return rate


def make_optimizer(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Clipping by the global norm, then the optimizer with its schedule."""
  adam = optax.scale_by_adam(
    config.adam_b1, config.adam_b2, config.adam_epsilon
  )
  decay = optax.add_decayed_weights(config.weight_decay, decayed_parameters)
  parts = {
    "adam": [adam],
    "adamw": [adam, decay],
    "lamb": [adam, decay, _scale_by_layer_trust_ratio()],
    "sgd": [optax.identity()],
  }[config.optimizer]
  rate = optax.scale_by_learning_rate(learning_rate_schedule(config))
  return optax.chain(_clip(config), optax.chain(*parts, rate))


def _clip(config: schema.TrainConfig) -> optax.GradientTransformation:
  """Clips, then adds the L2 penalty; no state, so a resumed run may change."""
  clip = optax.clip_by_global_norm(config.clip_norm or jnp.inf)

  def update(gradient, params):
    if config.clip_norm:
      gradient, _ = clip.update(gradient, optax.EmptyState())
    if config.l2_penalty:
      gradient = jax.tree.map(
        lambda slope, value: slope + config.l2_penalty * value, gradient, params
      )
    return gradient

  return optax.stateless(update)


def scale_update(
  update: shapes.PyTree,
  config: schema.TrainConfig,
  count: jax.Array,
  factor: float | jax.Array,
) -> shapes.PyTree:
  """Scales an update, that of the embedding tables by their own rate as well.

  Every optimizer's update is linear in the learning rate.

  Args:
    update: at the rate of `learning_rate_schedule`.
    config: of training.
    count: of the update, from 0; a scalar.
    factor: on all rates, likewise.
  """
  result = jax.tree.map(lambda leaf: factor * leaf, update)
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
  embedding = jax.tree.map(lambda leaf: own * leaf, result["embedding"])
  return {**result, "embedding": embedding}


def _scale_by_layer_trust_ratio() -> optax.GradientTransformation:
  """The trust ratio of LAMB (You et al. 2020, algorithm 2), one for each layer.

  The state is that of `optax.scale_by_trust_ratio`, which takes one ratio for
  each array, and so for all layers at once where an array stacks them.
  """
  whole = optax.scale_by_trust_ratio()

  def scale_layer(update, param):
    return whole.update(update, whole.init(param), param)[0]

  def scale(path, update, param):
    is_stack = path[0].key == "layers"
    return (jax.vmap(scale_layer) if is_stack else scale_layer)(update, param)

  def update(updates, state, params=None):
    return jax.tree_util.tree_map_with_path(scale, updates, params), state

  return optax.GradientTransformation(whole.init, update)


def decayed_parameters(params: shapes.PyTree) -> shapes.PyTree:
  """True for matrices and tables, False for biases and layer norms."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: not path[-1].key.endswith(("bias", "scale")), params
  )
