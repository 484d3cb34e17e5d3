"""Updates whose gradient flows through memory, against a float64 oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import oracle
from tests import own_process
from tests import tiny
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import network
from transformer_xl.training import divergence
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

LANES, LENGTH, MEMORY, SEGMENTS = 2, 4, 6, 3
# A high rate, so that little of the gradient is lost in the parameters.
RATE = 8.0
UPDATES = {
  "train.batch_size": LANES,
  "train.segment_len": LENGTH,
  "train.mem_len": MEMORY,
  "train.optimizer": "sgd",
  "train.clip_norm": 0.0,
  "train.learning_rate": RATE,
  "train.schedule": "constant",
}


@functools.cache
def make_config(*, segments=SEGMENTS, **updates):
  fields = UPDATES | {"train.gradient_segments": segments} | updates
  return load.from_config_dict(tiny.config_dict(**fields))


def make_segments(*, resets=(), weights=None):
  """[S, B, T]; resets are triples of segment, lane and token."""
  generator = np.random.default_rng(0)
  shape = (SEGMENTS, LANES, LENGTH)
  starts = np.zeros(shape, bool)
  for place in resets:
    starts[place] = True
  drawn = (generator.random(shape) < 0.7).astype(np.float32)
  segments = segment_lib.Segment(
    generator.integers(0, 23, shape).astype(np.int32),
    generator.integers(0, 23, shape).astype(np.int32),
    starts,
    drawn if weights is None else np.asarray(weights, np.float32),
  )
  return jax.tree.map(jnp.asarray, segments)


def only_last():
  weights = np.zeros((SEGMENTS, LANES, LENGTH))
  weights[-1] = 1
  return weights


@functools.cache
def start(config):
  """State, and a memory of which one lane sees a part."""
  state = jax.eval_shape(functools.partial(programs.init_state, config))
  state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
  state = state._replace(params=tiny.params(config.model))
  generator = np.random.default_rng(5)
  empty = programs.init_memory(config.recipe)
  layers, memory_tokens = jax.tree.map(
    lambda array: jnp.asarray(
      generator.standard_normal(array.shape), "float32"
    ),
    (empty.layers, empty.memory_tokens),
  )
  length = jnp.array([2, MEMORY], jnp.int32)
  return state, network.State(layers, length, memory_tokens)


@functools.cache
def compiled(config):
  return jax.jit(functools.partial(step_lib.train_step, recipe=config.recipe))


def update(config, segment, *, memory=None):
  """The gradient, as SGD applies it, the next memory and the metrics."""
  state, first = start(config)
  (after, memory), metrics = compiled(config)((state, memory or first), segment)
  gradient = jax.tree.map(
    lambda old, new: (np.float64(old) - new) / RATE, state.params, after.params
  )
  return gradient, memory, metrics


def one_by_one(segments):
  """What `update` finds for each segment alone, at the same parameters."""
  config, found = make_config(segments=1), []
  _, memory = start(config)
  for index in range(len(segments.inputs)):
    segment = jax.tree.map(lambda array, i=index: array[i], segments)
    found.append(update(config, segment, memory=memory))
    memory = found[-1][1]
  return found


def visible(config, lane):
  """What each layer sees of a lane's first memory, and its memory tokens."""
  _, memory = start(config)
  result = []
  for turn in range(config.model.num_layers // len(memory.layers)):
    for layer in memory.layers:
      states = np.float64(layer.hiddens[turn, lane])
      if config.model.memory_start == "masked":
        states = states[max(len(states) - int(memory.length[lane]), 0) :]
      result.append(states)
  held = memory.memory_tokens
  return [*result, None if held is None else np.float64(held[lane])]


def oracle_loss(config, params, segments):
  """The mean loss of all segments, one function of the parameters."""
  lanes = [visible(config, lane) for lane in range(LANES)]
  total = 0.0
  for index in range(len(segments.inputs)):
    inputs, targets, resets, weights = (array[index] for array in segments)
    log_probs, lanes = oracle.segment(
      params, config.model, inputs, lanes, mem_len=MEMORY, resets=resets
    )
    chosen = np.take_along_axis(log_probs, targets[:, :, None], 2)[:, :, 0]
    total -= np.sum(chosen * np.float64(weights))
  return total / np.float64(segments.weights).sum()


def assert_is_slope(gradient, config, segments):
  """Along a random direction for each array of parameters."""
  params = jax.tree.map(np.float64, start(config)[0].params)
  segments = jax.tree.map(np.asarray, segments)
  leaves, structure = jax.tree.flatten(params)
  generator, size = np.random.default_rng(1), 1e-5
  for index, leaf in enumerate(leaves):
    direction = generator.standard_normal(leaf.shape)

    def loss(distance, index=index, direction=direction):
      moved = [*leaves]
      moved[index] = moved[index] + distance * direction
      return oracle_loss(config, structure.unflatten(moved), segments)

    slope = (loss(size) - loss(-size)) / (2 * size)
    # The difference quotient is exact to 1e-9. The gradient is the difference
    # of parameters in float32, of which products of both signs are added.
    products = jax.tree.leaves(gradient)[index] * direction
    rounding = comparison.FLOAT32 * np.abs(leaf).max() / RATE
    tolerance = 2e-5 * np.abs(products).sum() + (
      rounding * np.abs(direction).sum()
    )
    assert np.sum(products) == pytest.approx(slope, abs=tolerance)


ZEROS = {"model.memory_start": "zeros"}
FEW = {
  "model.num_layers": 3,
  "model.layers": ("attention", "attention:1", "attention:3"),
  "train.accumulation_steps": 2,
}
# One lane starts over between segments, the other one within a segment.
RESETS = ((1, 0, 0), (2, 1, 2))


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("updates", "resets"),
  [
    ({}, RESETS),
    pytest.param(
      {"model.remat": "full", "model.untie_biases": True},
      RESETS,
      marks=pytest.mark.rest,
    ),
    ({"model.pre_norm": True, "train.accumulation_steps": 2}, RESETS),
    (ZEROS, RESETS[:1]),
    pytest.param(FEW, RESETS, marks=pytest.mark.rest),
    ({"model.num_memory_tokens": 2}, RESETS),
  ],
  ids=["plain", "recomputed", "accumulated", "zeros", "few", "memory tokens"],
)
def test_the_gradient_is_that_of_one_long_function(updates, resets):
  config, segments = make_config(**updates), make_segments(resets=resets)
  gradient, _, metrics = update(config, segments)
  assert_is_slope(gradient, config, segments)
  sums, params = metrics.sums, start(config)[0].params
  expected = oracle_loss(config, params, jax.tree.map(np.asarray, segments))
  assert float(sums.nll / sums.num_tokens) == pytest.approx(expected, rel=1e-6)
  assert float(sums.num_tokens) == float(segments.weights.sum())
  squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)]
  norm = np.sqrt(np.sum(squares))
  assert float(metrics.gradient_norm) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize(
  "num_segments", [pytest.param(2, marks=pytest.mark.rest), SEGMENTS]
)
def test_memory_carries_the_gradient_into_earlier_segments(num_segments):
  config = make_config(segments=num_segments)
  segments = jax.tree.map(
    lambda array: array[-num_segments:], make_segments(weights=only_last())
  )
  gradient, memory, metrics = update(config, segments)
  assert_is_slope(gradient, config, segments)
  # The last segment by itself has the same loss, but memory is a constant.
  parts = one_by_one(segments)
  stopped, last, alone = parts[-1]
  sums = metrics.sums.nll, alone.sums.nll
  assert float(sums[0]) == pytest.approx(float(sums[1]), rel=1e-6)
  comparison.assert_close(memory, last, roundings=30)
  assert comparison.distance(gradient, stopped) > 1e-2
  with pytest.raises(AssertionError):
    assert_is_slope(stopped, config, segments)


def test_resets_between_segments_cut_the_gradient():
  starts = [(s, lane, 0) for s in range(1, SEGMENTS) for lane in range(LANES)]
  for resets, is_cut in ((starts, True), (starts[:-1], False)):
    segments = make_segments(resets=resets)
    gradient, _, _ = update(make_config(), segments)
    parts = one_by_one(segments)
    counts = [float(metrics.sums.num_tokens) for _, _, metrics in parts]
    mean = jax.tree.map(
      lambda *rows, counts=counts: np.average(rows, axis=0, weights=counts),
      *(found for found, _, _ in parts),
    )
    # Sums in another order, in a difference of parameters.
    rounding = 100 * comparison.FLOAT32
    assert (comparison.difference(gradient, mean) < rounding) == is_cut


def test_a_chunk_is_a_loop_of_updates():
  config = make_config(
    segments=2, **{"model.dropout_rate": 0.1, "train.learning_rate": 0.1}
  )
  (state, memory), losses = start(config), []
  one, other = (
    jax.tree.map(lambda array: array[-2:], segments)
    for segments in (make_segments(), make_segments(weights=only_last()))
  )
  for segments in (one, other):
    (state, memory), metrics = compiled(config)((state, memory), segments)
    losses.append(float(metrics.sums.nll))
  both = jax.tree.map(lambda *parts: jnp.concatenate(parts), one, other)
  chunk = jax.jit(functools.partial(step_lib.train_chunk, recipe=config.recipe))
  after, remembered, metrics = chunk(*start(config), both)
  assert int(after.step) == int(state.step) == 2
  np.testing.assert_allclose(metrics.sums.nll, losses, rtol=1e-5)
  assert comparison.distance(after.params, start(config)[0].params) > 1e-2
  # Two programs may round differently.
  comparison.assert_close(after.params, state.params, roundings=30)
  comparison.assert_close(remembered, memory, roundings=30)


@pytest.mark.rest
def test_dropout_is_a_function_of_seed_step_and_segment():
  config = make_config(
    segments=2, **{"train.mem_len": 0, "model.dropout_rate": 0.3}
  )
  segments = jax.tree.map(lambda array: array[:1].repeat(2, 0), make_segments())
  state, memory = start(config)

  def loss(*weights, step=0):
    factors = jnp.array(weights)[:, None, None]
    weighed = segments._replace(weights=segments.weights * factors)
    carry = state._replace(step=jnp.int32(step)), memory
    return float(compiled(config)(carry, weighed)[1].sums.nll)

  assert loss(1.0, 0.0) == loss(1.0, 0.0)
  assert len({loss(1.0, 0.0), loss(0.0, 1.0), loss(1.0, 0.0, step=1)}) == 3
  parts = loss(1.0, 0.0) + loss(0.0, 1.0)
  assert loss(1.0, 1.0) == pytest.approx(parts, rel=1e-6)


def test_skipping_updates_skips_all_their_segments():
  rules = divergence.Rules(
    make_config(**{"divergence.action": "skip"}).divergence,
    every_steps=1,
    gradient_segments=SEGMENTS,
  )
  trouble = divergence.Diverged("the loss is not finite", 630)
  recovery = rules.respond(divergence.Recovery(), trouble, [0, 500])
  assert recovery.skipped == 130 * SEGMENTS


@pytest.mark.rest
@pytest.mark.slow
def test_a_mesh_makes_the_updates_of_one_device(tmp_path):
  result = own_process.result("segments_on_mesh", tmp_path)
  assert result["moved"] > 1e-2
  for name in ("mesh", "accumulated", "auxiliary", "modern"):
    # As in test_sharding.py.
    assert result[name]["loss"] < 20 * comparison.FLOAT32
    assert result[name]["parameters"] < 20 * comparison.FLOAT32
