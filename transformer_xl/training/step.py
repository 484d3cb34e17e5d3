"""A step of training: one update of the parameters.

An update reads S consecutive segments of all lanes, `train.gradient_segments`,
one by default; `train_chunk` scans C updates in one compiled call. Here `state`
is what training changes, parameters and optimizer, and `memory` is the state of
the network. Metrics are sums; means are made at the end.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import optax

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import lanes as lanes_lib
from transformer_xl.model import lora
from transformer_xl.model import nats
from transformer_xl.model import network
from transformer_xl.model import random_streams
from transformer_xl.model.mixers import mixer
from transformer_xl.training import averaging
from transformer_xl.training import loss as loss_lib
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training import rate_factors
from transformer_xl.workdir import run_state

# What an update takes and returns; leaves may be shapes or shardings instead.
Carry = tuple[run_state.TrainState, network.State]


class UpdateMetrics(NamedTuple):
  """Metrics of one update, or [C] of a chunk."""

  sums: nats.Sums
  gradient_norm: jt.Float[shapes.Array, ""]  # Before clipping.
  learning_rate: jt.Float[shapes.Array, ""]


def make_model(
  model: schema.ModelConfig, train: schema.TrainConfig
) -> network.Network:
  """The model with the attention of training."""
  settings = mixer.Settings(
    clamp_len=train.clamp_len,
    same_length=train.same_length,
    returns_losses=True,
    trains_memory=train.gradient_segments > 1,
  )
  return network.Network(model, settings)


def drawn_visible_len(
  recipe: schema.Recipe, step: jt.Int[shapes.Array, ""]
) -> jt.Int[shapes.Array, ""] | None:
  """How much of the memory an update sees; None for all of it.

  It is drawn uniformly from `train.mem_len_low` to `train.mem_len`, both
  included, as a function of seed and step.
  """
  train = recipe.train
  if train.mem_len == 0 or train.mem_len_low in (-1, train.mem_len):
    return None
  key = random_streams.key(recipe.seed, random_streams.Stream.VISIBLE_LEN)
  key = jax.random.fold_in(key, step)
  return jax.random.randint(key, (), train.mem_len_low, train.mem_len + 1)


def train_step(
  carry: Carry,
  segment: segment_lib.Segment,
  *,
  recipe: schema.Recipe,
  base: shapes.PyTree | None = None,
) -> tuple[Carry, UpdateMetrics]:
  """One update on one segment [B, T] of all lanes, or on [S, B, T].

  Without adapters (`train.lora`) all parameters are trained, and `base` is
  None. Otherwise it has the parameters that no update changes. The seed and the
  learning rate of the recipe may be traced scalars.
  """
  state, memory = carry
  train = recipe.train
  weights = segment.loss_weights()
  if train.loss_on == "recent_half":  # Table 6 of the paper.
    segment_len = weights.shape[-1]
    is_recent = jnp.arange(segment_len) >= segment_len // 2
    is_recent = jnp.expand_dims(is_recent, range(weights.ndim - 1))
    weights = jnp.where(is_recent, weights, 0.0)
  segment = segment._replace(weights=weights)
  key = random_streams.key(recipe.seed, random_streams.Stream.DROPOUT)
  key = jax.random.fold_in(key, state.step)
  loss = loss_lib.Loss(
    make_model(recipe.model, train),
    train,
    loss_lib.totals(segment),
    step=state.step,
    visible_len=drawn_visible_len(recipe, state.step),
  )
  gradient, sums, memory = _gradient(
    loss, state.params, base, memory, segment, key
  )
  gradient = rate_factors.without_frozen(gradient, train)
  factor = _rate_factor(state, segment, train)
  # For the log; the optimizer counts its updates by itself.
  rate = factor * optimizer_lib.learning_rate_schedule(train)(state.step)
  with jax.named_scope("optimizer"):
    updates, opt_state = optimizer_lib.make_optimizer(train).update(
      gradient, state.opt_state, state.params, rate_factor=factor
    )
    params = optax.apply_updates(state.params, updates)
  step = state.step + 1
  average = state.average
  if train.average_kind == "asgd":
    average = averaging.mean_since(train.asgd_start_step, average, params, step)
  elif train.average_kind == "ema":
    average = averaging.moving(average, params, step, train.ema_decay)
  metrics = UpdateMetrics(sums, optax.global_norm(gradient), rate)
  state = run_state.TrainState(step, params, opt_state, average)
  return (state, memory), metrics


def _rate_factor(
  state: run_state.TrainState,
  segment: segment_lib.Segment,
  train: schema.TrainConfig,
) -> float | jax.Array:
  """The factor on the learning rate of the schedule in this update."""
  factor: float | jax.Array = 1.0
  if train.segment_len_std:  # Padding has no weight.
    assert segment.weights is not None
    # All lanes have the same length.
    num_tokens = jnp.sum(segment.weights[..., 0, :])
    factor = num_tokens / (train.segment_len * train.gradient_segments)
  if train.asgd_start_step and train.average_rate_factor != 1:
    is_averaging = state.step >= train.asgd_start_step
    factor *= jnp.where(is_averaging, train.average_rate_factor, 1.0)
  return factor


def train_chunk(
  state: run_state.TrainState,
  memory: network.State,
  segments: segment_lib.Segment,
  *,
  recipe: schema.Recipe,
) -> tuple[run_state.TrainState, network.State, UpdateMetrics]:
  """Runs updates with `lax.scan`, each on the next S segments.

  Args:
    state: before the first update.
    memory: before the first segment.
    segments: consecutive segments [C * S, B, T]. Lanes may be padded so that
      devices divide them; memory is padded to match and cut back at the end.
    recipe: of the run. Its seed and its learning rate are traced scalars where
      `programs.update` compiles this.

  Returns:
    State and memory after the updates, and metrics [C].
  """
  base = state.base  # No update changes it, so that it is not carried.
  state = state._replace(base=None)
  update = functools.partial(train_step, recipe=recipe, base=base)
  num_lanes = segments.inputs.shape[1]
  by_update = recipe.train.gradient_segments
  if by_update > 1:
    segments = jax.tree.map(
      lambda array: array.reshape(-1, by_update, *array.shape[1:]), segments
    )
  carry = (state, lanes_lib.resize(memory, num_lanes))
  (state, padded), metrics = jax.lax.scan(update, carry, segments)
  memory = lanes_lib.resize(padded, recipe.train.batch_size)
  return state._replace(base=base), memory, metrics


def _gradient(
  loss: loss_lib.Loss,
  params: shapes.PyTree,
  base: shapes.PyTree | None,
  memory: network.State,
  segment: segment_lib.Segment,
  key: jax.Array,
) -> tuple[shapes.PyTree, nats.Sums, network.State]:
  """Gradient of the mean loss, its sums, and the next memory.

  Accumulation splits the lanes into parts, each with its own memory. The mean
  is over the tokens of all parts and of all segments of an update. Parts share
  the key of dropout, so that a lane drops the same whatever part it is in.
  """
  train = loss.train

  def of_trained(
    params: shapes.PyTree,
    memory: network.State,
    segment: segment_lib.Segment,
    lanes: shapes.Lanes,
  ) -> loss_lib.Result:
    params = lora.with_adapters(params, base, train)
    if train.gradient_segments > 1:
      return loss.of_segments(params, memory, segment, lanes, key)
    return loss(params, memory, segment, lanes, key)

  gradient = jax.grad(of_trained, has_aux=True)
  lanes = jnp.arange(segment.inputs.shape[-2], dtype=jnp.int32)
  parts = train.accumulation_steps
  if parts == 1:
    result, (sums, memory) = gradient(params, memory, segment, lanes)
    return result, sums, memory

  def add_part(
    carry: shapes.PyTree,
    part: tuple[network.State, segment_lib.Segment, shapes.Lanes],
  ) -> tuple[shapes.PyTree, network.State]:
    own_memory, own_segment, own_lanes = part
    result, (sums, next_memory) = gradient(
      params, own_memory, own_segment, own_lanes
    )
    return jax.tree.map(jnp.add, carry, (result, sums)), next_memory

  zeros = (
    jax.tree.map(jnp.zeros_like, params),
    nats.Sums(jnp.zeros(()), jnp.zeros(())),
  )
  by_part = (
    lanes_lib.split(memory, parts),
    jax.tree.map(
      lambda array: lanes_lib.split_axis(array, array.ndim - 2, parts), segment
    ),
    lanes_lib.split_axis(lanes, 0, parts),
  )
  (result, sums), memories = jax.lax.scan(add_part, zeros, by_part)
  return result, sums, lanes_lib.merge(memories)
