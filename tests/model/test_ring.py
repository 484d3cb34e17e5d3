"""Rings of keys and values, beyond what the oracle's cases show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import tiny
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import ring

ROTATING = kinds.encoding(rotates=True)


def test_rings_of_one_length_share_their_slot_within_a_step():
  """So that XLA computes their masks once; the two layers' are traced apart."""
  config = tiny.model_config(
    num_layers=4, layers=("attention", "attention:2"), encoding="relative"
  )
  reader = reader_lib.Reader(
    config,
    mem_len=tiny.MEMORY,
    segment_len=tiny.SEGMENT,
    clamp_len=0,
    same_length=False,
  )
  frozen = reader.freeze(tiny.params(config))
  state = reader.start(frozen, batch_size=tiny.LANES)
  tokens = jnp.zeros((tiny.LANES, tiny.SEGMENT), jnp.int32)

  def slots(layers):
    return [layer.slot for layer in ring.at_one_slot(layers)]

  def step(state):
    first, limited, third, last = slots(state.layers)
    assert third is first
    assert last is limited
    assert limited is not first
    return reader.read(frozen, state, tokens)[1]

  for _ in range(3):
    state = jax.jit(step)(state)
  for given, shared in zip(state.layers, slots(state.layers), strict=True):
    assert given.slot == shared


@pytest.mark.parametrize(
  ("mem_len", "step_len", "expected"),
  [(7, 3, 12), (6, 3, 9), (7, 1, 8), (0, 4, 4)],
)
def test_there_is_room_for_memory_and_one_step(mem_len, step_len, expected):
  """In whole steps, and for no more: every token reads the whole ring."""
  assert ring.num_slots(mem_len, step_len) == expected


def test_a_ring_holds_the_heads_of_keys_that_there_are():
  config = tiny.model_config(num_heads=4, num_kv_heads=2, encoding=ROTATING)
  reader = reader_lib.Reader(
    config, mem_len=7, segment_len=3, clamp_len=0, same_length=False
  )
  frozen = reader.freeze(tiny.params(config))
  state = reader.start(frozen, batch_size=tiny.LANES)
  for layer in state.layers:
    assert layer.cache.keys.shape[0] == layer.cache.values.shape[0]
    assert layer.cache.keys.shape[0] == tiny.LANES * 2


def test_a_lane_that_is_repeated_goes_on_in_each_copy():
  config = tiny.model_config()
  reader = reader_lib.Reader(
    config, mem_len=7, segment_len=3, clamp_len=0, same_length=False
  )
  frozen = reader.freeze(tiny.params(config))
  state = reader.start(frozen, batch_size=1)
  step = jax.jit(reader.step)
  for segment in ([3, 1, 4], [1, 5, 9]):
    tokens = jnp.asarray([segment])
    _, state = step(frozen, state, tokens)
  reader, frozen, state = reader.for_tokens(frozen, state)
  # Single tokens go on in a ring of M + 1 slots.
  assert {layer.cache.keys.shape[-1] for layer in state.layers} == {7 + 1}
  several = state.repeat_lane(3)
  step = jax.jit(reader.step)
  for token in (2, 6):
    alone, state = step(frozen, state, jnp.full((1, 1), token))
    each, several = step(frozen, several, jnp.full((3, 1), token))
    # Sums of products whose number of rows differs.
    comparison.assert_close(each, jnp.tile(alone, (3, 1, 1)), roundings=30)


def test_without_memory_single_tokens_are_read_as_in_whole_segments():
  """Each sees the segment that it completes, and nothing before it."""
  config = tiny.model_config()
  reader = reader_lib.Reader(
    config, mem_len=0, segment_len=4, clamp_len=0, same_length=False
  )
  frozen = reader.freeze(tiny.params(config))
  start = reader.start(frozen, batch_size=tiny.LANES)
  shape = (tiny.LANES, 12)
  tokens = jnp.asarray(np.random.default_rng(0).integers(23, size=shape))
  step = jax.jit(reader.step)
  state = start
  whole = []
  for first in (0, 4, 8):
    log_probs, state = step(frozen, state, tokens[:, first : first + 4])
    whole.append(log_probs)

  # Two tokens of a segment, then the rest one by one.
  _, state = jax.jit(reader.read)(frozen, start, tokens[:, :4], count=2)
  reader, frozen, state = reader.for_tokens(frozen, state)
  step = jax.jit(reader.step)
  single = []
  for index in range(2, 12):
    log_probs, state = step(frozen, state, tokens[:, index, None])
    single.append(log_probs)
  expected = jnp.concatenate(whole, axis=1)[:, 2:]
  # The same sums in another order.
  comparison.assert_close(
    jnp.concatenate(single, axis=1), expected, roundings=30
  )
