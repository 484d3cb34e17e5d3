"""Losses of other layers and later targets, against losses computed apart."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import tiny
from tests.training import test_resume
from tests.training import test_step
from transformer_xl.config import load
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.training import loss as loss_lib
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

LAYERS, WEIGHT, UPDATES = 4, 0.3, 80
MODEL = {
  "model.num_layers": LAYERS,
  "model.pre_norm": True,
  "model.final_norm": True,
  "model.auxiliary.target_weight": WEIGHT,
  "train.num_steps": UPDATES,
  "train.mem_len": test_step.MEMORY,
}
ADAPTIVE = {
  "model.cutoffs": (9,),
  "model.div_val": 2,
  "model.layers": ("attention", "attention:3"),
}


def make_config(layers, num_targets, **updates):
  auxiliary = {
    "model.auxiliary.layers": layers,
    "model.auxiliary.num_targets": num_targets,
  }
  return test_step.make_config(
    **test_step.PLAIN, **MODEL, **auxiliary, **updates
  )


@functools.cache
def start(config):
  """Parameters and a memory of which nothing is zero."""
  shapes = jax.eval_shape(functools.partial(programs.init_state, config.recipe))
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  state = state._replace(params=tiny.params(config.model))
  empty = programs.init_memory(config.recipe)
  generator = np.random.default_rng(5)
  layers = jax.tree.map(
    lambda leaf: jnp.asarray(
      generator.standard_normal(leaf.shape), jnp.float32
    ),
    empty.layers,
  )
  length = jnp.array([0, 3, 6, 6], jnp.int32)
  return state, network.State(layers, length)


def as_single(params, memory, config, count):
  """The `count` lowest layers, as layers that each have a place of their own.

  Any number of layers is then a pattern.
  """
  places = len(config.model.layers)

  def at(tree, number):
    turn, place = divmod(number, places)
    part = tree[str(place)] if isinstance(tree, dict) else tree[place]
    return jax.tree.map(lambda leaf: leaf[turn][None], part)

  layers = {str(n): at(params["layers"], n) for n in range(count)}
  states = tuple(at(memory.layers, n) for n in range(count))
  pattern = tuple(config.model.layers[n % places] for n in range(count))
  model = dataclasses.replace(config.model, num_layers=count, layers=pattern)
  return (
    model,
    params | {"layers": layers},
    network.State(states, memory.length),
  )


def softmax(model, params):
  """One that shares nothing with the input."""
  untied = dataclasses.replace(model, tie_weights=False, tie_projections="none")
  made = adaptive_softmax.AdaptiveSoftmax(untied)
  return made.apply({"params": params}, (), ())


def weights_apart(segment, ahead):
  """Weights of later targets, position by position."""
  result = np.zeros(segment.weights.shape, np.float32)
  for lane, position in np.ndindex(*result.shape):
    target = position + ahead
    if target < result.shape[1]:
      starts = segment.resets[lane, position + 1 : target + 1]
      if not starts.any():
        result[lane, position] = segment.weights[lane, target]
  return result


def expected_loss(config, memory, segment, num_silent, params):
  """A sum of losses of models that are cut off above one layer.

  Also returns the sum over next tokens of the model that is not cut off.
  """
  auxiliary = config.model.auxiliary
  total = 0.0
  for count in range(num_silent + 1, LAYERS + 1):
    cut, cut_params, cut_memory = as_single(params, memory, config, count)
    model = network.Network(cut).bind({"params": cut_params})
    hidden, _ = model(segment.inputs, cut_memory, segment.resets)
    for target in range(1, auxiliary.num_targets + 1):
      own = params.get("auxiliary", {}).get(f"target_{target}")
      if count < LAYERS and auxiliary.layers == "own":
        stacked = params["auxiliary"][f"layers_target_{target}"]
        own = jax.tree.map(lambda leaf, row=count - 1: leaf[row], stacked)
      head = model.head() if own is None else softmax(config.model, own)
      ahead = target - 1
      later = np.roll(segment.targets, -ahead, axis=1)
      nll = adaptive_softmax.nll(hidden, later, head)
      nll_sum = jnp.sum(nll * weights_apart(segment, ahead))
      mean = nll_sum / float(segment.weights.sum())
      total += mean * (WEIGHT if ahead else 1.0)
      if not ahead:
        next_sum = nll_sum  # In the end, that of all layers.
  return total, next_sum


@pytest.mark.parametrize(
  ("layers", "num_targets", "updates", "step"),
  [
    ("own", 2, ADAPTIVE, 11),
    ("none", 3, {}, 0),
    pytest.param("shared", 2, {}, 29, marks=pytest.mark.rest),
    pytest.param("own", 2, {}, 30, marks=pytest.mark.rest),
    pytest.param("shared", 1, ADAPTIVE, 0, marks=pytest.mark.rest),
  ],
  ids=str,
)
def test_the_loss_is_a_sum_of_losses_of_models_that_are_cut_off(
  layers, num_targets, updates, step
):
  """SGD follows its gradient; layers 1 to 3 of 4 stop at 10, 20 and 30 of 80.

  What is logged is the loss of the next token alone.
  """
  config = make_config(layers, num_targets, **updates)
  state, memory = start(config)
  segment = test_step.at(test_step.make_segments(), 0)
  resets = segment.resets.at[1, 3].set(True)
  weights = segment.weights.at[1, 2:].set(1.0)
  segment = segment._replace(resets=resets, weights=weights)
  segment = jax.tree.map(np.asarray, segment)
  num_silent = step // 10 if layers != "none" else LAYERS - 1
  loss = functools.partial(expected_loss, config, memory, segment, num_silent)
  update = test_step.compiled(step_lib.train_step, config)
  moved = state._replace(step=np.int32(step))
  (after, _), metrics = update(moved, memory, segment, 0)
  gradient, next_sum = jax.jit(jax.grad(loss, has_aux=True))(state.params)
  expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, gradient)
  # Sums of the same terms in another order.
  comparison.assert_close(after.params, expected, roundings=100)
  assert comparison.distance(after.params, state.params) > 1e-2
  comparison.assert_close(metrics.sums.nll, next_sum, roundings=10)
  assert float(metrics.sums.num_tokens) == segment.weights.sum()


def test_parameters_of_the_model_are_drawn_as_without_the_predictions():
  config = make_config("own", 1)
  plain = make_config("none", 1)
  draw = jax.jit(programs.drawn_params, static_argnums=0)
  drawn = draw(config.recipe)
  alone = draw(plain.recipe)
  extra = drawn.pop("auxiliary")
  test_step.assert_equal(drawn, alone)
  assert "auxiliary" not in alone
  first, second = extra["layers_target_1"]["kernel_0"][:2]
  assert float(jnp.max(jnp.abs(first - second))) > 0.01


@pytest.mark.rest
def test_dropout_of_the_prediction_is_the_same_with_others_beside_it():
  config = make_config("shared", 1, **{"model.dropout_rate": 0.3})
  plain = make_config("none", 1, **{"model.dropout_rate": 0.3})
  state, memory = start(config)
  segment = test_step.at(test_step.make_segments(), 0)
  sums = [
    test_step.compiled(step_lib.train_step, one)(state, memory, segment, 0)[
      1
    ].sums
    for one in (config, plain)
  ]
  comparison.assert_close(*sums, roundings=10)


@pytest.mark.parametrize(
  ("num_layers", "trained", "inference"), [(64, 235e6, 219e6), (12, 44e6, 41e6)]
)
def test_own_softmaxes_give_the_published_numbers_of_parameters(
  num_layers, trained, inference
):
  """Al-Rfou et al. 2018, table 1: 235 and 219 million; 44 and 41 million."""
  config = load.from_config_dict(
    tiny.config_dict(
      **{
        "model.vocab_size": 256,
        "model.num_layers": num_layers,
        "model.model_dim": 512,
        "model.num_heads": 2,
        "model.head_dim": 256,
        "model.ff_dim": 2048,
        "model.encoding": "absolute_per_layer",
        "model.num_positions": 512,
        "model.auxiliary.layers": "own",
        "model.auxiliary.num_targets": 2,
      }
    )
  )
  params = network.abstract_params(config.model)
  assert network.num_parameters(params) == pytest.approx(trained, abs=5e5)
  del params["auxiliary"]
  assert network.num_parameters(params) == pytest.approx(inference, abs=6e5)


def test_layers_stop_one_after_the_other_up_to_the_middle_of_training():
  count = functools.partial(loss_lib.num_silent_layers, LAYERS, UPDATES)
  silent = jax.vmap(count)(jnp.arange(UPDATES)).tolist()
  assert silent == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 50


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_one(data_dir, tmp_path):
  updates = {
    "model.auxiliary.layers": "own",
    "model.auxiliary.num_targets": 2,
    "train.log_every_steps": 12,
    "train.eval_every_steps": 12,
    "checkpoint.every_steps": 12,
    "train.segments_per_call": 4,
  }
  config = corpus.config(data_dir, **updates)
  test_resume.assert_same_in_parts(config, tmp_path, 8)
