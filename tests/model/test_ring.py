"""Rings of keys and values, where results alone do not show what they cost."""

import jax
import jax.numpy as jnp

from tests import tiny
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import ring


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
