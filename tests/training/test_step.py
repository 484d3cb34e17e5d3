"""Updates and scores as scans, against loops and direct computation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import network
from transformer_xl.model.mixers import attention
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

BATCH, LENGTH, MEMORY, COUNT = 4, 5, 6, 4
TO_THE_BIT = tuple(tiny.TO_THE_BIT.items())
PLAIN = {"train.optimizer": "sgd", "train.clip_norm": 0.0}
EVERYTHING = {
  "model.dropout_rate": 0.2,
  "train.accumulation_steps": 2,
  "train.ema_decay": 0.75,
}


@functools.cache
def make_config(**updates):
  values = {
    "train.batch_size": BATCH,
    "train.learning_rate": 0.1,
    "train.schedule": "constant",
    "train.segments_per_call": 1,
  }
  return load.from_config_dict(tiny.config_dict(**(values | updates)))


def make_segments():
  generator = np.random.default_rng(0)
  shape = (COUNT, BATCH, LENGTH)
  segments = segment_lib.Segment(
    generator.integers(0, 23, shape).astype(np.int32),
    generator.integers(0, 23, shape).astype(np.int32),
    weights=(generator.random(shape) < 0.7).astype(np.float32),
    resets=generator.random(shape) < 0.05,
  )
  return jax.tree.map(jnp.asarray, segments)


def at(segments, index):
  return jax.tree.map(lambda array: array[index], segments)


def start(config):
  """State and memory, of which nothing is zero or too small to matter."""
  shapes = jax.eval_shape(functools.partial(programs.init_state, config))
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  state = state._replace(params=tiny.params(config.model))
  if state.average is not None:
    state = state._replace(average=tiny.params(config.model, seed=1))
  shape = (config.model.num_layers, BATCH, MEMORY, config.model.model_dim)
  hiddens = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
  length = jnp.array([0, 3, 6, 6], jnp.int32)
  return state, with_hiddens(jnp.asarray(hiddens), length)


def with_hiddens(hiddens, length):
  """A memory whose layers, all alike, have these inputs, [N, B, M, D]."""
  return network.State((attention.Memory(hiddens),), length)


@functools.cache
def compiled(function, config, *, options=()):
  """`train_step` or `train_chunk`; a seed to take the place of config's."""

  def call(state, memory, segments, seed):
    seeded = dataclasses.replace(config.recipe, seed=seed)
    if function is step_lib.train_step:
      return function((state, memory), segments, recipe=seeded)
    return function(state, memory, segments, recipe=seeded)

  return jax.jit(call, compiler_options=dict(options))


def run(config, segments, *, options=()):
  """State, memory and metrics after four updates."""
  update = compiled(step_lib.train_chunk, config, options=options)
  return update(*start(config), segments, 0)


def score(config, params, memory, segment):
  """The memory after a segment, and the losses of its targets."""
  nll, memory = step_lib.make_model(config.model, config.train).apply(
    {"params": params},
    segment.inputs,
    segment.targets,
    memory,
    segment.resets,
    method="nll",
  )
  return memory, nll


def assert_equal(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.rest  # `test_gradient_segments` has the same, up to rounding.
def test_a_chunk_is_a_loop_of_single_updates_bit_for_bit():
  config, segments = make_config(**EVERYTHING), make_segments()
  state, memory, metrics = run(config, segments, options=TO_THE_BIT)
  update = compiled(step_lib.train_step, config, options=TO_THE_BIT)
  carry, losses = start(config), []
  for i in range(COUNT):
    carry, single = update(*carry, at(segments, i), 0)
    losses.append(single)
  assert_equal((state, memory), carry)
  assert_equal(metrics, jax.tree.map(lambda *rows: jnp.stack(rows), *losses))
  assert int(state.step) == COUNT


@pytest.mark.parametrize("count", [1, 2])
def test_memory_has_a_gradient_from_two_segments_on(count):
  updates = {"train.gradient_segments": count, "train.segments_per_call": count}
  settings = step_lib.make_model(
    make_config(**updates).model, make_config(**updates).train
  ).settings
  assert settings.returns_losses
  assert settings.trains_memory == (count == 2)


def test_accumulation_over_lanes_is_one_update_on_all_of_them():
  segments = make_segments()
  counts = segments.weights.sum(axis=2)  # [S, B]: a mean of means differs.
  assert (counts[:, ::2].sum(axis=1) != counts[:, 1::2].sum(axis=1)).any()
  whole_config = make_config(**PLAIN)
  config = make_config(**PLAIN, **{"train.accumulation_steps": 2})
  assert config.train != whole_config.train
  state, memory, metrics = run(config, segments)
  whole, whole_memory, whole_metrics = run(whole_config, segments)
  assert comparison.distance(whole.params, start(config)[0].params) > 1e-2
  # Sums in another order, over four updates.
  comparison.assert_close(state.params, whole.params, roundings=30)
  comparison.assert_close(metrics, whole_metrics, roundings=30)
  comparison.assert_close(memory, whole_memory, roundings=30)


def test_empty_lanes_change_no_update():
  """As many as the devices of a mesh need to have the same number."""
  config = make_config(**PLAIN)
  segments = make_segments()
  padded = segment_lib.with_empty_lanes(segments, BATCH + 2)
  with jax.set_mesh(mesh_lib.make_mesh(config.mesh)):
    state, memory, metrics = run(config, jax.tree.map(jnp.asarray, padded))
  whole, whole_memory, whole_metrics = run(config, segments)
  assert comparison.distance(whole.params, start(config)[0].params) > 1e-2
  # Sums of the same numbers in another order, over four updates.
  comparison.assert_close(state.params, whole.params, roundings=30)
  comparison.assert_close(metrics, whole_metrics, roundings=30)
  comparison.assert_close(memory, whole_memory, roundings=30)


def test_dropout_is_a_function_of_seed_and_step():
  config = make_config(**EVERYTHING)
  update = compiled(step_lib.train_step, config)
  state, memory = start(config)

  def loss(seed, step):
    moved = state._replace(step=np.int32(step))
    _, metrics = update(moved, memory, at(make_segments(), 0), seed)
    return float(metrics.sums.nll)

  assert loss(0, 0) == loss(0, 0)
  assert len({loss(0, 0), loss(0, 1), loss(0, 2), loss(1, 0)}) == 4


def test_lanes_of_different_parts_drop_other_units():
  config = make_config(**EVERYTHING)
  state, memory = start(config)
  # Lanes 0 and 1 are alike and in different parts.
  twins = np.array([0, 0, 2, 2])
  segment = jax.tree.map(lambda a: a[twins], at(make_segments(), 0))
  hiddens = memory.layers[0].hiddens[:, twins]
  memory = with_hiddens(hiddens, memory.length[twins])
  update = compiled(step_lib.train_step, config)
  (_, after), _ = update(state, memory, segment, 0)
  hiddens = after.layers[0].hiddens
  assert comparison.distance(hiddens[:, 0], hiddens[:, 1]) > 1e-3


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("penalty", "only_one"),
  [
    ("activation", False),
    ("temporal_activation", False),
    ("temporal_activation", True),
  ],
)
def test_penalties_change_the_gradient_by_their_own_and_no_reported_loss(
  penalty, only_one
):
  """All tokens of an update count, or a single one."""
  plain = make_config(**PLAIN)
  config = make_config(**PLAIN, **{f"train.{penalty}_penalty": 0.5})
  state, memory = start(config)
  segment = at(make_segments(), 0)
  # A document starts at a token that counts.
  segment = segment._replace(
    resets=segment.resets.at[1, 2].set(True),
    weights=segment.weights.at[1, 2].set(1.0),
  )
  if only_one:
    weights = jnp.zeros_like(segment.weights).at[2, 3].set(1.0)
    segment = segment._replace(weights=weights)
  model = step_lib.make_model(config.model, config.train)

  def expected(params):
    hidden, _ = model.apply(
      {"params": params}, segment.inputs, memory, segment.resets
    )
    squares = jnp.mean(hidden**2, axis=2)
    if penalty == "temporal_activation":
      change = jnp.mean((hidden[:, 1:] - hidden[:, :-1]) ** 2, axis=2)
      change = jnp.where(segment.resets[:, 1:], 0, change)
      counts = ~segment.resets[:, 1:] * segment.weights[:, 1:]
      return 0.5 * jnp.sum(change * counts) / counts.sum()
    return 0.5 * jnp.sum(squares * segment.weights) / segment.weights.sum()

  results = [
    compiled(step_lib.train_step, one)(state, memory, segment, 0)
    for one in (plain, config)
  ]
  (one, _), metrics = results[0]
  (other, _), penalised = results[1]
  assert_equal(metrics.sums, penalised.sums)
  # SGD at rate 0.1: the difference of the updates is that of the gradients.
  gradient = jax.jit(jax.grad(expected))(state.params)
  assert (
    comparison.distance(gradient, jax.tree.map(jnp.zeros_like, gradient)) > 1e-2
  )
  moved = jax.tree.map(lambda p, g: p - 0.1 * g, one.params, gradient)
  comparison.assert_close(other.params, moved, roundings=10)


def test_a_loss_of_mixers_is_a_mean_over_tokens():
  """The convolution of slots follows it, and no other loss."""
  fields = {
    **kinds.model(kinds.compressing()),
    "train.segment_len": LENGTH,
    "train.mem_len": MEMORY,
  }
  config = make_config(**PLAIN, **fields)
  segments = make_segments()
  update = compiled(step_lib.train_step, config)
  state, _ = start(config)
  memory = programs.init_memory(config.recipe)
  for index in range(COUNT - 1):
    (state, memory), _ = update(state, memory, at(segments, index), 0)
  last = at(segments, COUNT - 1)

  def loss(params):
    _, auxiliary, _ = step_lib.make_model(config.model, config.train).apply(
      {"params": params},
      last.inputs,
      last.targets,
      memory,
      last.resets,
      dropout_lanes=None,
      method="training_losses",
    )
    return jnp.sum(auxiliary.mixers * last.weights) / last.weights.sum()

  (after, _), _ = update(state, memory, last, 0)
  gradient = jax.jit(jax.grad(loss))(state.params)
  before, moved, slope = (
    tree["layers"]["0"][kinds.compressing()]["compression"]
    for tree in (state.params, after.params, gradient)
  )
  expected = jax.tree.map(lambda p, g: p - 0.1 * g, before, slope)
  assert comparison.distance(expected, before) > 1e-3
  comparison.assert_close(moved, expected, roundings=30)


def test_targets_without_weight_change_nothing():
  config, segments = make_config(**PLAIN), make_segments()
  targets = jnp.where(segments.weights == 0, 7, segments.targets)
  assert (targets != segments.targets).any()
  other = segments._replace(targets=targets)
  assert_equal(run(config, segments), run(config, other))


def test_a_segment_without_any_weight_leaves_the_parameters():
  config, segments = make_config(**PLAIN), make_segments()
  nothing = segments._replace(weights=jnp.zeros_like(segments.weights))
  state, _, metrics = run(config, nothing)
  assert_equal(state.params, start(config)[0].params)
  assert float(metrics.sums.num_tokens.sum()) == 0
  assert float(metrics.gradient_norm.max()) == 0


@pytest.mark.parametrize("only_one", [False, True], ids=["all", "one"])
def test_sgd_follows_the_gradient_of_the_mean_over_tokens(only_one):
  """Over all tokens of an update that count, or over a single one."""
  config, segments = make_config(**PLAIN), make_segments()
  only_first = jnp.arange(COUNT)[:, None, None] == 0
  weights = jnp.where(only_first, segments.weights, 0)
  if only_one:
    weights = jnp.zeros_like(weights).at[0, 1, 2].set(1)
  segments = segments._replace(weights=weights)
  state, memory = start(config)
  segment = at(segments, 0)

  def loss(params):
    _, nll = score(config, params, memory, segment)
    return jnp.sum(nll * segment.weights) / jnp.sum(segment.weights)

  value, gradient = jax.jit(jax.value_and_grad(loss))(state.params)
  after, _, metrics = run(config, segments)
  expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, gradient)
  comparison.assert_close(after.params, expected, roundings=30)
  mean = float(metrics.sums.nll[0] / metrics.sums.num_tokens[0])
  assert mean == pytest.approx(float(value), rel=1e-6)
  norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
  assert float(metrics.gradient_norm[0]) == pytest.approx(norm, rel=1e-5)


def test_norms_are_those_before_clipping_and_rates_those_in_use():
  updates = PLAIN | {"train.clip_norm": 1e-3, "train.warmup_steps": 3}
  clipped, segments = make_config(**updates), make_segments()
  state, _, metrics = run(clipped, segments)
  free, _, free_metrics = run(make_config(**PLAIN), segments)
  norm = float(metrics.gradient_norm[0])
  assert norm == pytest.approx(float(free_metrics.gradient_norm[0]), rel=1e-6)
  assert norm > 0.1
  rates = np.array([0.1 / 3, 0.2 / 3, 0.1, 0.1])
  np.testing.assert_allclose(metrics.learning_rate, rates, rtol=1e-6)
  before = start(clipped)[0].params
  assert 0 < comparison.distance(state.params, before) <= 1.001e-3 * rates.sum()
  assert comparison.distance(free.params, before) > 1.001e-3 * rates.sum()


def test_no_gradient_flows_into_memory():
  config, segment = make_config(**PLAIN), at(make_segments(), 0)
  segment = segment._replace(resets=jnp.zeros_like(segment.resets))
  state, memory = start(config)

  def loss(hiddens):
    before = with_hiddens(hiddens, memory.length)
    return jnp.sum(score(config, state.params, before, segment)[1])

  hiddens = memory.layers[0].hiddens
  both = jax.jit(jax.value_and_grad(loss))
  value, gradient = both(hiddens)
  np.testing.assert_array_equal(gradient, 0)
  assert abs(float(both(hiddens + 1)[0] - value)) > 1e-3


@pytest.mark.rest
def test_the_recent_half_of_a_segment_is_learned():
  """As if the loader had given no weight to the rest; memory has all of it."""
  segments = make_segments()
  half = make_config(**PLAIN, **{"train.loss_on": "recent_half"})
  weights = segments.weights.at[:, :, : LENGTH // 2].set(0)
  assert weights.sum() < segments.weights.sum()
  other = segments._replace(weights=weights)
  actual = run(half, segments, options=TO_THE_BIT)
  expected = run(make_config(**PLAIN), other, options=TO_THE_BIT)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)
