"""What the published Penn Treebank training adds to an update.

Against plain functions, with SGD, so that an update is a gradient.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import network
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

LANES, CONTEXT, LENGTH = 2, 4, 6
PLAIN = {
  **{"train.batch_size": LANES, "train.segment_len": LENGTH},
  **{"train.optimizer": "sgd", "train.clip_norm": 0.0},
  **{"train.learning_rate": 0.1, "train.schedule": "constant"},
  **{"train.mem_len": 0, "train.segments_per_call": 1},
}


def make_config(**updates):
  return load.from_config_dict(tiny.config_dict(**PLAIN | updates))


def make_segment(num_inputs, num_targets, weights=None):
  generator = np.random.default_rng(0)
  inputs = generator.integers(0, 23, (LANES, num_inputs)).astype(np.int32)
  targets = generator.integers(0, 23, (LANES, num_targets)).astype(np.int32)
  resets = np.zeros(inputs.shape, bool)
  segment = segment_lib.Segment(inputs, targets, resets, weights)
  return jax.tree.map(jnp.asarray, segment)


@functools.cache
def compiled(recipe):
  return jax.jit(functools.partial(step_lib.train_step, recipe=recipe))


def update(config, segment, *, step=0):
  """Parameters before and after an update, and its metrics."""
  shapes = jax.eval_shape(functools.partial(programs.init_state, config))
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  params = tiny.params(config.model)
  # The optimizer counts updates by itself.
  opt_state = optax.tree.set(state.opt_state, count=np.int32(step))
  state = state._replace(
    params=params, step=np.int32(step), opt_state=opt_state
  )
  if state.average is not None:
    state = state._replace(average=params)
  memory = programs.init_memory(config.recipe)
  (after, _), metrics = compiled(config.recipe)((state, memory), segment)
  return params, after.params, metrics


@pytest.mark.rest
def test_context_has_gradient_and_no_loss():
  config = make_config(**{"train.context_len": CONTEXT})
  segment = make_segment(CONTEXT + LENGTH, LENGTH)
  model = network.Network(config.model)
  empty = programs.init_memory(config.recipe)

  def loss(params, context):
    log_probs, _ = model.apply(
      {"params": params},
      jnp.concatenate([context, segment.inputs[:, CONTEXT:]], axis=1),
      empty,
      method="log_probs",
    )
    scored = log_probs[:, CONTEXT:]
    return -jnp.mean(
      jnp.take_along_axis(scored, segment.targets[..., None], axis=2)
    )

  before, after, metrics = update(config, segment)
  value, gradient = jax.value_and_grad(loss)(
    before, segment.inputs[:, :CONTEXT]
  )
  expected = jax.tree.map(lambda p, g: p - 0.1 * g, before, gradient)
  assert comparison.distance(before, after) > 1e-3
  # Sums in another order.
  comparison.assert_close(after, expected, roundings=30)
  assert float(metrics.sums.num_tokens) == LANES * LENGTH
  mean = float(metrics.sums.nll / metrics.sums.num_tokens)
  assert mean == pytest.approx(float(value), rel=1e-6)
  other = loss(before, (segment.inputs[:, :CONTEXT] + 1) % 23)
  assert abs(float(other - value)) > 1e-3


@pytest.mark.rest
def test_a_padded_update_is_that_of_the_drawn_length():
  """Its rate, too, is in proportion to the length."""
  weights = np.zeros((LANES, 8), np.float32)
  weights[:, :LENGTH] = 1
  padded = make_segment(8, 8, weights)
  short = jax.tree.map(lambda array: array[:, :LENGTH], padded)
  drawn = make_config(
    **{"train.segment_len_std": 2.0, "train.segment_len": 2 * LENGTH}
  )
  before, one, metrics = update(drawn, padded)
  _, other, plain = update(make_config(), short._replace(weights=None))
  assert float(metrics.learning_rate) == pytest.approx(0.05)
  assert float(metrics.sums.nll) == pytest.approx(float(plain.sums.nll))
  half = jax.tree.map(lambda a, b: (a + b) / 2, before, other)
  assert comparison.distance(before, one) > 1e-3
  comparison.assert_close(one, half, roundings=30)


@pytest.mark.rest
def test_the_rate_is_in_proportion_to_the_lengths_of_all_segments():
  config = make_config(
    **{"train.segment_len_std": 2.0, "train.segment_len": 8},
    **{"train.gradient_segments": 2},
  )
  weights = np.zeros((2, LANES, 8), np.float32)
  weights[0, :, :4] = 1
  weights[1, :, :6] = 1
  segment = make_segment(8, 8)
  segments = jax.tree.map(lambda array: jnp.stack([array] * 2), segment)
  segments = segments._replace(weights=jnp.asarray(weights))
  _, _, metrics = update(config, segments)
  assert float(metrics.learning_rate) == pytest.approx(0.1 * (4 + 6) / (2 * 8))


@pytest.mark.rest
def test_embedding_tables_have_a_rate_of_their_own():
  segment = make_segment(LENGTH, LENGTH)
  config = make_config(**{"train.embedding_rate_factor": 2.0})
  before, one, metrics = update(config, segment)
  _, other, plain = update(make_config(), segment)
  assert float(metrics.learning_rate) == float(plain.learning_rate)
  for name in before:
    factor = 2 if name == "embedding" else 1
    expected = jax.tree.map(
      lambda p, q, factor=factor: p + factor * (q - p),
      before[name],
      other[name],
    )
    assert comparison.distance(before[name], one[name]) > 1e-4
    comparison.assert_close(one[name], expected, roundings=10)


@pytest.mark.rest
def test_both_rates_end_where_the_cosine_of_the_others_ends():
  cosine = {
    **{"train.schedule": "cosine", "train.num_steps": 20},
    **{"train.decay_steps": 10, "train.min_learning_rate_ratio": 0.25},
  }
  segment = make_segment(LENGTH, LENGTH)
  factor = {"train.embedding_rate_factor": 2.0}
  for step in (0, 5, 10, 15):
    before, one, metrics = update(
      make_config(**cosine, **factor), segment, step=step
    )
    _, other, _ = update(make_config(**cosine), segment, step=step)
    wave = 0.5 * (1 + np.cos(np.pi * min(step / 10, 1)))
    rate, table_rate = (0.025 + (peak - 0.025) * wave for peak in (0.1, 0.2))
    assert float(metrics.learning_rate) == pytest.approx(rate)
    start, table, plain = (
      tree["embedding"]["table_0"] for tree in (before, one, other)
    )
    expected = start + (plain - start) * table_rate / rate
    comparison.assert_close(table, expected, roundings=10)


def test_the_rate_falls_where_the_mean_of_the_parameters_begins():
  config = make_config(
    **{"train.asgd_start_step": 2, "train.average_rate_factor": 0.5}
  )
  segment = make_segment(LENGTH, LENGTH)
  results = [update(config, segment, step=step) for step in (1, 2)]
  rates = [float(metrics.learning_rate) for _, _, metrics in results]
  assert rates == pytest.approx([0.1, 0.05])
  (before, one, _), (_, other, _) = results
  half = jax.tree.map(lambda a, b: (a + b) / 2, before, one)
  comparison.assert_close(other, half, roundings=10)


def test_the_penalty_is_taken_before_dropout():
  segment = make_segment(CONTEXT + LENGTH, LENGTH)
  config = make_config(
    **{"model.output_dropout_rate": 0.9, "train.context_len": CONTEXT}
  )
  model = step_lib.make_model(config.model, config.train)
  read = jax.jit(model.apply, static_argnames="method")
  empty = programs.init_memory(config.recipe)
  params = {"params": tiny.params(config.model)}
  _, auxiliary, _ = read(
    *(params, segment.inputs, segment.targets, empty, segment.resets),
    dropout_lanes=jnp.arange(len(segment.inputs)),
    rngs={"dropout": jax.random.key(0)},
    method="training_losses",
  )
  hidden, _ = read(params, segment.inputs, empty)
  squares = jnp.mean(hidden[:, CONTEXT:] ** 2, axis=2)
  np.testing.assert_allclose(auxiliary.activation, squares, rtol=1e-5)
