"""Keys in a ring keep the positions that they were written with."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.model import kinds
from transformer_xl.model import kv_cache
from transformer_xl.model import transformer_xl

LANES, MEMORY, SEGMENT = 2, 6, 4
MASKED = {"encoding": "rope", "position_scale": 0.7}
ZEROS = {"encoding": "rope", "pre_norm": True, "memory_start": "zeros"}
LENGTHS = {"clamp_len": 0, "same_length": False}


def make_reader(fields, *, mem_len, segment_len):
  config = tiny.model_config(**fields)
  return kv_cache.Reader(
    config, mem_len=mem_len, segment_len=segment_len, **LENGTHS
  )


def draw(count):
  tokens = np.random.default_rng(0).integers(23, size=(LANES, count))
  return jnp.asarray(tokens, jnp.int32)


@pytest.mark.parametrize("num_read", [5_000_000, 2**31 - 30])
@pytest.mark.parametrize("fields", [MASKED, ZEROS], ids=["masked", "zeros"])
def test_a_text_reads_as_it_would_at_the_beginning(fields, num_read):
  """Millions of tokens later, and where the number of tokens overflows."""
  reader = make_reader(fields, mem_len=MEMORY, segment_len=SEGMENT)
  frozen = reader.freeze(tiny.params(reader.config))
  step, tokens = jax.jit(reader.step), draw(48)

  def read(num_read):
    state = reader.start(frozen, batch_size=LANES)
    state = state._replace(num_read=jnp.int32(num_read))
    cuts = [*range(0, 20, SEGMENT), 20, 22]
    found = []
    for start, stop in itertools.pairwise(cuts):
      # Empty slots get the positions just before those of the first token.
      resets = jnp.zeros((LANES, stop - start), bool).at[:, 0].set(start == 0)
      values, state = step(frozen, state, tokens[:, start:stop], resets)
      found.append(values)
    tight, tight_frozen, state = reader.for_tokens(frozen, state)
    tight_step = jax.jit(tight.step)
    for index in range(22, 48):
      resets = jnp.asarray([[False], [index in (30, 37)]])
      token = tokens[:, index : index + 1]
      values, state = tight_step(tight_frozen, state, token, resets)
      found.append(values)
    assert state.num_read == np.int64(num_read + 48).astype(np.int32)
    return np.concatenate(found, axis=1)

  expected, found = read(0), read(num_read)
  # Angles are rounded, too.
  comparison.assert_close(found, expected, roundings=30)


def test_lanes_are_emptied_at_every_slot():
  reader = make_reader(ZEROS, mem_len=3, segment_len=1)
  params = tiny.params(reader.config)
  model = transformer_xl.TransformerXL(reader.config, **LENGTHS)
  memory = kinds.empty_memory(reader.config, batch_size=LANES, mem_len=3)
  frozen = reader.freeze(params)
  state = reader.start(frozen, batch_size=LANES)
  step, tokens = jax.jit(reader.step), draw(25)

  @jax.jit
  def expected(memory, token, resets):
    return model.apply(
      {"params": params}, token, memory, resets, method="log_probs"
    )

  slots = set()
  for index in range(25):
    token, is_first = tokens[:, index : index + 1], index % 5 == 0
    if is_first:
      slots.add(int(state.slot))
    resets = jnp.asarray([[False], [is_first]])
    want, memory = expected(memory, token, resets)
    got, state = step(frozen, state, token, resets)
    comparison.assert_close(got, want, roundings=30)
  assert slots == set(range(reader.num_slots))


def test_a_token_rotates_its_own_key_alone():
  reader = make_reader(MASKED, mem_len=60, segment_len=1)
  frozen = reader.freeze(tiny.params(reader.config))
  state = reader.start(frozen, batch_size=1)
  tokens = jnp.zeros((1, 1), jnp.int32)
  text = str(jax.make_jaxpr(reader.step)(frozen, state, tokens))
  shapes = re.findall(r":f32\[([\d,]+)\] = (?:sin|cos)\b", text)
  assert shapes
  width = reader.config.head_dim // 2
  assert {np.prod([*map(int, shape.split(","))]) for shape in shapes} == {width}
