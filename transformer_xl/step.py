"""Training and scoring: scans of one-segment functions over memory.

`train_chunk` makes one update for each of S segments in one compiled call;
`score_chunk` is the same scan without updates. Sums travel, means are made at
the end.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import optax

from transformer_xl import averaging
from transformer_xl import config as config_lib
from transformer_xl import memory as memory_lib
from transformer_xl import model as model_lib
from transformer_xl import optimizer as optimizer_lib
from transformer_xl import shapes


class Segment(NamedTuple):
  """What the loader emits; the model never shifts labels."""

  inputs: shapes.Tokens
  targets: shapes.Tokens
  weights: shapes.Weights  # 0 where a target is not to be counted.
  resets: shapes.Resets  # True at the first token of a document.


class TrainState(NamedTuple):
  """What training changes, besides the memory."""

  step: jt.Int[shapes.Array, ""]  # Completed updates; the next segment.
  params: shapes.PyTree
  opt_state: shapes.PyTree
  average: shapes.PyTree  # Of params: a moving one, or a mean; or None.
  # The mean is over the updates after this one; None for a moving average.
  average_start: jt.Int[shapes.Array, ""] | None = None


class Sums(NamedTuple):
  """Sums over tokens, in float32."""

  nll: jt.Float[shapes.Array, ""]  # Nats.
  num_tokens: jt.Float[shapes.Array, ""]


class UpdateMetrics(NamedTuple):
  """What one update reports."""

  sums: Sums
  gradient_norm: jt.Float[shapes.Array, ""]  # Before clipping.
  learning_rate: jt.Float[shapes.Array, ""]


class Training(NamedTuple):
  """The fixed parts of training: functions, and numbers that shape them."""

  model: model_lib.TransformerXL
  optimizer: optax.GradientTransformation
  learning_rate: optax.Schedule
  seed: int
  accumulation_steps: int
  ema_decay: float
  loss_on: str
  activation_penalty: float
  temporal_activation_penalty: float
  rated_len: int  # T for which the learning rate is; 0: for any.


def make_training(config: config_lib.ExperimentConfig) -> Training:
  """Builds what `train_segment` needs from a configuration."""
  return Training(
    model=model_lib.TransformerXL(
      config.model,
      clamp_len=config.train.clamp_len,
      same_length=config.train.same_length,
    ),
    optimizer=optimizer_lib.make_optimizer(config.train),
    learning_rate=optimizer_lib.learning_rate_schedule(config.train),
    seed=config.seed,
    accumulation_steps=config.train.accumulation_steps,
    ema_decay=config.train.ema_decay,
    loss_on=config.train.loss_on,
    activation_penalty=config.train.activation_penalty,
    temporal_activation_penalty=config.train.temporal_activation_penalty,
    rated_len=config.train.segment_len if config.train.segment_lens else 0,
  )


def init_state(config: config_lib.ExperimentConfig) -> TrainState:
  """Parameters drawn from the seed, and an optimizer that saw nothing."""
  key = jax.random.fold_in(jax.random.key(config.seed), 0)
  params = model_lib.init_params(config.model, key)
  optimizer = optimizer_lib.make_optimizer(config.train)
  kind, average, start = config.train.average_kind, None, None
  if kind:  # A copy: the state is donated, a buffer can be given away once.
    average = jax.tree.map(jnp.copy, params)
  if kind == "asgd":
    start = jnp.asarray(averaging.Start(config.train).step, jnp.int32)
  step = jnp.zeros((), jnp.int32)
  return TrainState(step, params, optimizer.init(params), average, start)


def train_segment(
  state: TrainState,
  memory: memory_lib.Memory,
  segment: Segment,
  *,
  training: Training,
) -> tuple[tuple[TrainState, memory_lib.Memory], UpdateMetrics]:
  """One update on one segment of all lanes."""
  segment = _with_counted(segment, training.loss_on)
  # Parameters are drawn from stream 0 of the seed, dropout from stream 1.
  key = jax.random.fold_in(jax.random.key(training.seed), 1)
  key = jax.random.fold_in(key, state.step)
  gradient, sums, memory = _gradient(
    state.params, memory, segment, key, training
  )
  updates, opt_state = training.optimizer.update(
    gradient, state.opt_state, state.params
  )
  rate = training.learning_rate(state.step)
  if training.rated_len:  # All optimizers' updates are in proportion to it.
    share = segment.inputs.shape[1] / training.rated_len
    updates = jax.tree.map(lambda update: share * update, updates)
    rate = share * rate
  params = optax.apply_updates(state.params, updates)
  step, average = state.step + 1, state.average
  if state.average_start is not None:
    average = averaging.mean_since(state.average_start, average, params, step)
  elif average is not None:
    average = optax.incremental_update(params, average, 1 - training.ema_decay)
  metrics = UpdateMetrics(sums, optax.global_norm(gradient), rate)
  state = TrainState(step, params, opt_state, average, state.average_start)
  return (state, memory), metrics


def train_chunk(
  state: TrainState,
  memory: memory_lib.Memory,
  segments: Segment,
  *,
  training: Training,
) -> tuple[TrainState, memory_lib.Memory, UpdateMetrics]:
  """S updates on S consecutive segments, [S, B, T]; metrics come as [S]."""

  def body(carry, segment):
    state, memory = carry
    return train_segment(state, memory, segment, training=training)

  (state, memory), metrics = jax.lax.scan(body, (state, memory), segments)
  return state, memory, metrics


def score_segment(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: Segment,
  *,
  model: model_lib.TransformerXL,
) -> tuple[memory_lib.Memory, shapes.Losses]:
  """Negative log-probabilities of one segment's targets, unweighted."""
  scored: Any = model.apply(
    {"params": params},
    segment.inputs,
    segment.targets,
    memory,
    segment.resets,
    method="nll",
  )
  nll, memory = scored
  return memory, nll


def score_chunk(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segments: Segment,
  *,
  model: model_lib.TransformerXL,
) -> tuple[memory_lib.Memory, Sums]:
  """Sums over S consecutive segments, [S, B, T], of weighted tokens."""
  score = functools.partial(score_segment, model=model)
  return sum_segments(params, memory, segments, score=score)


def sum_segments(
  params: shapes.PyTree,
  memory: shapes.PyTree,
  segments: Segment,
  *,
  score: Callable[..., tuple[shapes.PyTree, shapes.Losses]],
) -> tuple[shapes.PyTree, Sums]:
  """`score_chunk` for any way to remember.

  Args:
    params: whatever `score` takes first.
    memory: what it hands from a segment to the next.
    segments: [S, B, T].
    score: maps params, memory and a segment as `score_segment` does.
  """

  def body(memory, segment):
    memory, nll = score(params, memory, segment)
    return memory, _sums(nll, segment.weights)

  memory, sums = jax.lax.scan(body, memory, segments)
  return memory, jax.tree.map(jnp.sum, sums)


def _gradient(params, memory, segment, key, training):
  """Gradient of the mean loss, its sums, and the next memory.

  With accumulation the lanes are read in parts, each with its own memory, and
  every token weighs the same whichever part it is in.
  """
  total = jnp.maximum(jnp.sum(segment.weights), 1.0)

  def loss(params, memory, segment, key):
    nll, penalties, memory = training.model.apply(
      {"params": params},
      segment.inputs,
      segment.targets,
      memory,
      segment.resets,
      activation=training.activation_penalty,
      temporal=training.temporal_activation_penalty,
      rngs={"dropout": key},
      method="penalised_nll",
    )
    sums = _sums(nll, segment.weights)
    objective = sums.nll
    if training.activation_penalty or training.temporal_activation_penalty:
      objective += _sums(penalties, segment.weights).nll
    return objective / total, (sums, memory)

  gradient = jax.grad(loss, has_aux=True)
  parts = training.accumulation_steps
  if parts == 1:
    result, (sums, memory) = gradient(params, memory, segment, key)
    return result, sums, memory

  def body(carry, part):
    index, memory, segment = part
    part_key = jax.random.fold_in(key, index)
    result, (sums, memory) = gradient(params, memory, segment, part_key)
    return jax.tree.map(jnp.add, carry, (result, sums)), memory

  zeros = (
    jax.tree.map(jnp.zeros_like, params),
    Sums(jnp.zeros(()), jnp.zeros(())),
  )
  split = _split_lanes(memory, parts), _split_lanes(segment, parts)
  (result, sums), memory = jax.lax.scan(
    body, zeros, (jnp.arange(parts), *split)
  )
  return result, sums, _merge_lanes(memory)


def _with_counted(segment: Segment, loss_on: str) -> Segment:
  """Weights 0 where a target is not to be learned (paper, table 6)."""
  if loss_on == "all":
    return segment
  segment_len = segment.weights.shape[1]
  counted = jnp.arange(segment_len) >= segment_len // 2
  return segment._replace(
    weights=jnp.where(counted[None], segment.weights, 0.0)
  )


def _sums(nll: shapes.Losses, weights: shapes.Weights) -> Sums:
  # Lane by lane, which no mesh splits, and apart, lest XLA make it one sum:
  # so meshes add the same few numbers, and add them in short rows.
  lanes = jax.lax.optimization_barrier(jnp.sum(nll * weights, axis=1))
  return Sums(jnp.sum(lanes), jnp.sum(weights))


def _lane_axis(array: jax.Array) -> int:
  """Layer memories are [N, B, M, D]; all else starts with its lanes."""
  return 1 if array.ndim == 4 else 0


def _split_lanes(tree: shapes.PyTree, parts: int) -> shapes.PyTree:
  """Puts every `parts`-th lane together, so that no lane leaves its device."""

  def split(array):
    axis = _lane_axis(array)
    lanes = array.shape[axis] // parts
    shape = (*array.shape[:axis], lanes, parts, *array.shape[axis + 1 :])
    return jnp.moveaxis(array.reshape(shape), axis + 1, 0)

  return jax.tree.map(split, tree)


def _merge_lanes(tree: shapes.PyTree) -> shapes.PyTree:
  def merge(array):
    axis = _lane_axis(array[0])
    moved = jnp.moveaxis(array, 0, axis + 1)
    lanes = moved.shape[axis] * moved.shape[axis + 1]  # Memory can be empty.
    shape = (*moved.shape[:axis], lanes, *moved.shape[axis + 2 :])
    return moved.reshape(shape)

  return jax.tree.map(merge, tree)
