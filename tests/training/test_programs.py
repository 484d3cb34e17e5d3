"""What the program of updates depends on, and what it takes as numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests.training import test_step
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import registry
from transformer_xl.model import random_streams
from transformer_xl.training import optimizer
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

# The seed decides what is dropped, and how much of the memory is seen.
RUN = {
  **test_step.PLAIN,
  "model.dropout_rate": 0.3,
  "train.mem_len_low": 0,
  "train.mem_len": test_step.MEMORY,
}
OTHER = {"seed": 3, "train.learning_rate": 0.02}


@functools.cache
def lowered(**updates):
  config = test_step.make_config(**RUN | updates)
  mesh = mesh_lib.make_mesh(config.mesh, devices=jax.devices()[:1])
  numbers = programs.numbers(config.recipe)
  state = programs.abstract_state(config.recipe)
  update = programs.update(config.recipe, mesh)
  return update.lower(numbers, *state, test_step.make_segments())


def test_runs_of_other_seeds_and_learning_rates_share_their_program():
  """Otherwise a study would compile one for each of its rates."""
  text = lowered().as_text()
  assert lowered(**OTHER).as_text() == text
  assert lowered(**{"train.loss_on": "recent_half"}).as_text() != text


def test_runs_of_other_seeds_share_the_program_that_draws():
  def text(**updates):
    config = test_step.make_config(**RUN | updates)
    mesh = mesh_lib.make_mesh(config.mesh, devices=jax.devices()[:1])
    create, _ = programs.creators(config.recipe, mesh)
    return create.func.lower(*create.args).as_text()

  assert text(**OTHER) == text()
  assert text(**{"model.init_std": 0.5}) != text()


def test_a_shared_program_makes_the_updates_of_each_run():
  one = test_step.make_config(**RUN)
  other = test_step.make_config(**RUN | OTHER)
  segments = test_step.make_segments()
  alone = jax.jit(functools.partial(step_lib.train_chunk, recipe=other.recipe))
  wanted, _, metrics = alone(*test_step.start(other), segments)

  shared = lowered().compile()
  before = jax.tree.map(jnp.array, test_step.start(other))
  numbers = programs.numbers(other.recipe)
  state, _, own = shared(numbers, *before, segments)
  before = jax.tree.map(jnp.array, test_step.start(one))
  first, _, _ = shared(programs.numbers(one.recipe), *before, segments)

  assert comparison.distance(first.params, wanted.params) > 1e-3
  for found, want in zip(
    jax.tree.leaves((state.params, own)),
    jax.tree.leaves((wanted.params, metrics)),
    strict=True,
  ):
    comparison.assert_close(found, want, roundings=100)


@pytest.mark.parametrize("name", registry.schedules)
def test_a_rate_has_the_same_bits_as_a_number(name):
  """The results of runs depend on each of them."""
  train = test_step.make_config(
    **{
      "train.schedule": name,
      "train.learning_rate": 3e-3,
      "train.warmup_steps": 50,  # Whose reciprocal is rounded.
      "train.num_steps": 200,
      "train.decay_steps": 190,
    }
  ).train

  def rates(steps, learning_rate):
    own = dataclasses.replace(train, learning_rate=learning_rate)
    return jax.vmap(optimizer.learning_rate_schedule(own))(steps)

  steps = jnp.arange(200)
  wanted = jax.jit(lambda steps: rates(steps, train.learning_rate))(steps)
  found = jax.jit(rates)(steps, train.learning_rate)
  np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5, 2**32 - 1])
def test_a_seed_has_the_same_stream_as_a_number(seed):
  config = test_step.make_config(seed=seed)
  number = programs.numbers(config.recipe).seed
  stream = random_streams.Stream.DROPOUT
  wanted = random_streams.key(seed, stream)
  found = jax.jit(lambda own: random_streams.key(own, stream))(number)
  np.testing.assert_array_equal(
    jax.random.key_data(found), jax.random.key_data(wanted)
  )
