"""Memory against plain Python lists, for every order of lengths."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from tests import tiny
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import visibility

LANES, LAYERS, WIDTH = 2, 2, 2
# Memory longer than, as long as and shorter than the segment, and none.
LENGTHS = tuple((m, t) for m in (0, 1, 2, 5) for t in (1, 2, 5))


@functools.partial(jax.jit, static_argnames=("same_length", "window"))
def _read(memory, hiddens, resets, *, same_length=False, window="mem_len"):
  """What the model does with memory in one segment."""
  memory = memory_lib.reset(memory, resets[:, 0], start="masked")
  resets = resets.at[:, 0].set(False)
  reach = memory_lib.reach(
    memory, resets, same_length=same_length, window=window
  )
  return reach, memory_lib.append(memory, hiddens, resets)


def _empty(mem_len, start="masked", dtype="float32"):
  config = tiny.model_config(
    num_layers=LAYERS, model_dim=WIDTH, dtype=dtype, memory_start=start
  )
  return memory_lib.empty(config, batch_size=LANES, mem_len=mem_len)


def _states(numbers):
  """Hidden states [N, B, T, D] that tell token, layer and channel apart."""
  numbers = np.asarray(numbers, np.float32)[None, :, :, None]
  layers = 1000 * np.arange(LAYERS, dtype=np.float32)[:, None, None, None]
  channels = 0.25 * np.arange(WIDTH, dtype=np.float32)[None, None, None]
  return jnp.asarray(numbers + layers + channels)


def _segments(lengths):
  """Lengths, and the resets [B, T] of three segments."""
  mem_len, segment_len = lengths
  row = strategies.lists(
    strategies.sampled_from([False, False, False, True]),
    min_size=segment_len,
    max_size=segment_len,
  )
  segment = strategies.lists(row, min_size=LANES, max_size=LANES)
  return strategies.tuples(
    strategies.just(mem_len),
    strategies.lists(segment, min_size=3, max_size=3),
  )


@hypothesis.given(strategies.sampled_from(LENGTHS).flatmap(_segments))
def test_memory_holds_what_a_list_would_hold(example):
  mem_len, segments = example
  memory, lists = _empty(mem_len), [[], []]
  token = 0
  for resets in segments:
    resets = np.array(resets)
    numbers = token + np.arange(resets.size).reshape(resets.shape)
    token += resets.size
    reach, memory = _read(memory, _states(numbers), jnp.asarray(resets))
    for lane in range(LANES):
      expected = []
      for number, starts in zip(numbers[lane], resets[lane], strict=True):
        lists[lane] = [] if starts else lists[lane]
        expected.append(len(lists[lane]))
        lists[lane].append(number)
      lists[lane] = lists[lane][-mem_len:] if mem_len else []
      assert reach[lane].tolist() == expected
      assert memory.length[lane] == len(lists[lane])
      states = _states([lists[lane]])[:, 0]
      visible = memory.hiddens[:, lane, mem_len - len(lists[lane]) :]
      np.testing.assert_array_equal(visible, states)


@pytest.mark.parametrize(
  ("window", "farthest"), [("mem_len", 2), ("mem_len_plus_one", 3)]
)
def test_same_length_limits_reach_by_either_rule(window, farthest):
  memory = _empty(3)
  resets = jnp.zeros((LANES, 5), bool).at[1, 2].set(True)
  hiddens = _states(np.arange(10).reshape(LANES, 5))
  free, _ = _read(memory, hiddens, resets)
  reach, memory = _read(
    memory, hiddens, resets, same_length=True, window=window
  )
  assert free.max() > farthest
  np.testing.assert_array_equal(reach, np.minimum(free, farthest))
  reach, _ = _read(memory, hiddens, resets, same_length=True, window=window)
  assert reach[0].tolist() == [farthest] * 5


@pytest.mark.parametrize("window", ["mem_len", "mem_len_plus_one"])
def test_without_memory_same_length_has_no_effect(window):
  resets = jnp.zeros((LANES, 3), bool)
  hiddens = _states(np.zeros((LANES, 3)))
  reach, _ = _read(_empty(0), hiddens, resets, same_length=True, window=window)
  np.testing.assert_array_equal(reach, [[0, 1, 2]] * LANES)


def test_empty_memory_is_hidden_or_all_visible():
  assert _empty(4).length.tolist() == [0, 0]
  zeros = _empty(4, start="zeros")
  assert zeros.length.tolist() == [4, 4]
  assert not zeros.hiddens.any()


@pytest.mark.parametrize("start", ["masked", "zeros"])
def test_reset_makes_a_lane_as_good_as_empty(start):
  resets = jnp.zeros((LANES, 2), bool)
  memory = _empty(3, start=start)
  full = memory_lib.append(memory, _states([[1, 2], [3, 4]]), resets)
  rows = jnp.array([False, True])
  actual = memory_lib.reset(full, rows, start=start)
  np.testing.assert_array_equal(actual.hiddens[:, 0], full.hiddens[:, 0])
  assert actual.length[0] == full.length[0] > 0
  assert actual.length[1] == memory.length[1]
  if start == "zeros":
    assert full.hiddens[:, 1].any()
    assert not actual.hiddens[:, 1].any()


def test_neighbours_that_remember_equally_much_share_an_array():
  def shape(num_layers, mem_len, *pairs):
    config = tiny.model_config(num_layers=num_layers, memory_lens=pairs)
    memory = memory_lib.empty(config, batch_size=LANES, mem_len=mem_len)
    return jax.tree.map(lambda array: array.shape[::2], memory.hiddens)

  assert shape(6, 9, (2, 4), (1, 0)) == ((2, 4), (1, 9), (2, 4), (1, 9))
  assert shape(4, 9, (1, 4), (1, 0), (2, 12)) == ((1, 4), (3, 9))
  # One array as without limits, where none or the same one applies.
  assert shape(4, 4, (2, 4), (1, 0), (1, 12)) == (4, 4)
  assert shape(4, 9, (2, 4)) == (4, 4)


def test_gradients_stop_at_memory():
  def total(hiddens):
    resets = jnp.zeros((LANES, 3), bool)
    return memory_lib.append(_empty(4), hiddens, resets).hiddens.sum()

  hiddens = _states(np.ones((LANES, 3)))
  assert total(hiddens) != 0
  assert not jax.grad(total)(hiddens).any()


def test_memory_keeps_its_type():
  memory = _empty(2, dtype="bfloat16")
  resets = jnp.zeros((LANES, 3), bool)
  after = memory_lib.append(memory, _states(np.ones((LANES, 3))), resets)
  assert after.hiddens.dtype == jnp.bfloat16
  assert after.length.dtype == memory.length.dtype == jnp.int32


def test_no_reset_is_farther_than_any_distance():
  resets = jnp.array([[False] * 4, [False, True, False, True]])
  since = visibility.positions_since_reset(resets)
  assert since[1, 1:].tolist() == [0, 1, 0]
  assert since[0].min() > 10**6
  assert since[1, 0] > 10**6
