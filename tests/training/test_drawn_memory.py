"""The memory that updates see is of a drawn length (`train.mem_len_low`)."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests.training import test_step
from transformer_xl.model import network
from transformer_xl.model.mixers import attention
from transformer_xl.training import step as step_lib

PLAIN = {
  "train.optimizer": "sgd",
  "train.clip_norm": 0.0,
  "train.mem_len": test_step.MEMORY,
}


def make_config(low):
  return test_step.make_config(**PLAIN, **{"train.mem_len_low": low})


@functools.cache
def drawn(seed, *, count=400):
  """The lengths of the first updates."""
  recipe = make_config(1).recipe
  recipe = recipe.__class__(recipe.model, recipe.train, seed)
  draw = functools.partial(step_lib.drawn_visible_len, recipe)
  return np.asarray(jax.jit(jax.vmap(draw))(np.arange(count)))


def test_lengths_are_uniform_with_both_ends_and_follow_the_seed():
  counts = collections.Counter(drawn(0).tolist())
  assert sorted(counts) == [1, 2, 3, 4, 5, 6]
  # 400 draws of 6 values: a count has a standard deviation of 7.5.
  assert max(abs(count - 400 / 6) for count in counts.values()) < 30
  assert (drawn(0) != drawn(1)).any()


@pytest.mark.parametrize("low", [-1, test_step.MEMORY])
def test_nothing_is_drawn_where_all_of_the_memory_is_seen(low):
  recipe = make_config(low).recipe
  assert step_lib.drawn_visible_len(recipe, jnp.int32(3)) is None


def test_an_update_sees_as_much_of_the_memory_as_was_drawn():
  """It is the update of a shorter memory, and hands on all of the longer."""
  state, memory = test_step.start(make_config(-1))
  segment = test_step.at(test_step.make_segments(), 0)
  update = test_step.compiled(step_lib.train_step, make_config(1))
  whole = test_step.compiled(step_lib.train_step, make_config(-1))
  (_, whole_memory), whole_metrics = whole(state, memory, segment, 0)
  lengths = drawn(0)
  for length in (1, 4):
    step = np.int32(np.flatnonzero(lengths == length)[0])
    ours = state._replace(step=step)
    (after, next_memory), metrics = update(ours, memory, segment, 0)
    # The rows that are not seen are cut off.
    hiddens = memory.layers[0].hiddens[:, :, -length:]
    cut = network.State((attention.Memory(hiddens),), memory.length)
    (expected, _), cut_metrics = whole(ours, cut, segment, 0)
    assert float(cut_metrics.sums.nll) != float(whole_metrics.sums.nll)
    # Sums over fewer keys, in another order.
    comparison.assert_close(after.params, expected.params, roundings=30)
    comparison.assert_close(metrics.sums, cut_metrics.sums, roundings=30)
    # The first layer's inputs do not depend on what is seen.
    first = next_memory.layers[0].hiddens[0]
    np.testing.assert_array_equal(first, whole_memory.layers[0].hiddens[0])
    np.testing.assert_array_equal(next_memory.length, whole_memory.length)
