"""A step of training: one update on one segment of all lanes.

With `train.gradient_segments` above 1, an update takes S consecutive segments.
`train_chunk` scans C updates in one compiled call. Metrics are sums; means are
made at the end.
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
from transformer_xl.evaluation import nats
from transformer_xl.model import lanes as lanes_lib
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.training import averaging
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training import rate_factors
from transformer_xl.workdir import run_state

# What an update takes and returns; leaves may be shapes or shardings instead.
Carry = tuple[run_state.TrainState, network.State]
# A loss to differentiate, with the sums that are logged and the next memory.
Loss = tuple[jax.Array, tuple[nats.Sums, network.State]]


class UpdateMetrics(NamedTuple):
  """Metrics of one update, or [C] of a chunk."""

  sums: nats.Sums
  gradient_norm: jt.Float[shapes.Array, ""]  # Before clipping.
  learning_rate: jt.Float[shapes.Array, ""]


def make_model(config: schema.ExperimentConfig) -> network.Network:
  """The model with the attention of training."""
  settings = mixer.Settings(
    clamp_len=config.train.clamp_len,
    same_length=config.train.same_length,
    trains=True,
    trains_memory=config.train.gradient_segments > 1,
  )
  return network.Network(config.model, settings)


def train_segment(
  carry: Carry, segment: segment_lib.Segment, *, config: schema.ExperimentConfig
) -> tuple[Carry, UpdateMetrics]:
  """One update on one segment [B, T] of all lanes, or on [S, B, T]."""
  state, memory = carry
  train = config.train
  weights = segment.loss_weights()
  if train.loss_on == "recent_half":  # Table 6 of the paper.
    segment_len = weights.shape[-1]
    is_recent = jnp.arange(segment_len) >= segment_len // 2
    is_recent = jnp.expand_dims(is_recent, range(weights.ndim - 1))
    weights = jnp.where(is_recent, weights, 0.0)
  segment = segment._replace(weights=weights)
  # Parameters are drawn from stream 0 of the seed, dropout from stream 1.
  key = jax.random.fold_in(jax.random.key(config.seed), 1)
  key = jax.random.fold_in(key, state.step)
  gradient, sums, memory = _gradient(state.params, memory, segment, key, config)
  gradient = rate_factors.without_frozen(gradient, train)
  factor = _rate_factor(state, segment, train)
  rate = factor * optimizer_lib.learning_rate_schedule(train)(state.step)
  with jax.named_scope("optimizer"):
    updates, opt_state = optimizer_lib.make_optimizer(train).update(
      gradient, state.opt_state, state.params
    )
    updates = optimizer_lib.scale_update(updates, train, state.step, factor)
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
  config: schema.ExperimentConfig,
) -> tuple[run_state.TrainState, network.State, UpdateMetrics]:
  """Runs one update per segment with `lax.scan`, carrying state and memory.

  Args:
    state: what updates change, apart from memory.
    memory: the state of the network.
    segments: consecutive segments [S, B, T]. An update takes
      `train.gradient_segments` of them. Lanes may be padded so that devices
      divide them; memory is padded to match and cut back at the end.
    config: of the run.

  Returns:
    State and memory after the updates, and metrics with one entry an update.
  """
  update = functools.partial(train_segment, config=config)
  num_lanes = segments.inputs.shape[1]
  each = config.train.gradient_segments
  if each > 1:
    segments = jax.tree.map(
      lambda array: array.reshape(-1, each, *array.shape[1:]), segments
    )
  carry = (state, lanes_lib.resize(memory, num_lanes))
  (state, padded), metrics = jax.lax.scan(update, carry, segments)
  memory = lanes_lib.resize(padded, config.train.batch_size)
  return state, memory, metrics


def _gradient(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment,
  key: jax.Array,
  config: schema.ExperimentConfig,
) -> tuple[shapes.PyTree, nats.Sums, network.State]:
  """Gradient of the mean loss, its sums, and the next memory.

  Accumulation splits the lanes into parts, each with its own memory. The mean
  is over the tokens of all parts and of all segments of an update. Parts share
  the key of dropout, so that a lane drops the same whatever part it is in.
  """
  model = make_model(config)
  train = config.train
  assert segment.weights is not None
  num_targets = segment.targets.shape[-1]
  total = jnp.maximum(jnp.sum(segment.weights), 1.0)
  is_change = ~segment.resets[..., -num_targets:][..., 1:]
  num_changes = jnp.maximum(jnp.sum(segment.weights[..., 1:] * is_change), 1.0)

  def loss(
    params: shapes.PyTree,
    memory: network.State,
    segment: segment_lib.Segment,
    lanes: shapes.Lanes,
    key: jax.Array,
  ) -> Loss:
    losses: shapes.PyTree = model.apply(
      {"params": params},
      segment.inputs,
      segment.targets,
      memory,
      segment.resets,
      dropout_lanes=lanes,
      rngs={"dropout": key},
      method="training_losses",
    )
    nll, auxiliary, memory = losses
    weights = segment.weights
    assert weights is not None

    def summed(losses: shapes.Losses) -> nats.Sums:
      return nats.sum_losses(losses, weights)

    sums = summed(nll)
    objective = sums.nll / total
    if train.activation_penalty:
      activation = summed(auxiliary.activation).nll / total
      objective += train.activation_penalty * activation
    if train.temporal_activation_penalty:
      temporal = summed(auxiliary.temporal).nll / num_changes
      objective += train.temporal_activation_penalty * temporal
    if auxiliary.mixers is not None:
      objective += summed(auxiliary.mixers).nll / total
    return objective, (sums, memory)

  def loss_of_all(
    params: shapes.PyTree,
    memory: network.State,
    segments: segment_lib.Segment,
    lanes: shapes.Lanes,
    key: jax.Array,
  ) -> Loss:
    """Loss of several segments; only the memories between them are kept."""

    @functools.partial(jax.checkpoint, prevent_cse=False)  # A scan prevents it.
    def read(
      memory: network.State, part: tuple[jax.Array, segment_lib.Segment]
    ) -> tuple[network.State, tuple[jax.Array, nats.Sums]]:
      index, segment = part
      own_key = jax.random.fold_in(key, index)
      objective, (sums, memory) = loss(params, memory, segment, lanes, own_key)
      return memory, (objective, sums)

    indices = jnp.arange(train.gradient_segments)
    memory, parts = jax.lax.scan(read, memory, (indices, segments))
    objective, sums = jax.tree.map(jnp.sum, parts)
    return objective, (sums, memory)

  several = train.gradient_segments > 1
  gradient = jax.grad(loss_of_all if several else loss, has_aux=True)
  lanes = jnp.arange(segment.inputs.shape[-2], dtype=jnp.int32)
  parts = train.accumulation_steps
  if parts == 1:
    result, (sums, memory) = gradient(params, memory, segment, lanes, key)
    return result, sums, memory

  def add_part(
    carry: shapes.PyTree,
    part: tuple[network.State, segment_lib.Segment, shapes.Lanes],
  ) -> tuple[shapes.PyTree, network.State]:
    own_memory, own_segment, own_lanes = part
    result, (sums, next_memory) = gradient(
      params, own_memory, own_segment, own_lanes, key
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
