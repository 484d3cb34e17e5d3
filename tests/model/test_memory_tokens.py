"""Memory tokens: parts of segments, lanes, gradients, and what cannot be.

tests/conformance/test_oracle.py has their equations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.model import lanes
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.mixers import mixer

SEGMENT, SIZE = 5, 3
_read = jax.jit(
  lambda reader, *arguments, **named: reader.read(*arguments, **named),
  static_argnums=0,
)


def _reader(*, mem_len, same_length):
  """A reader of whole segments and parts, its parameters and first state."""
  reader = reader_lib.Reader(
    tiny.model_config(num_memory_tokens=SIZE),
    mem_len=mem_len,
    segment_len=SEGMENT,
    clamp_len=0,
    same_length=same_length,
  )
  frozen = reader.freeze(tiny.params(reader.config))
  return reader, frozen, reader.start(frozen, batch_size=2)


def _text(config):
  """Two lanes of four segments, and resets at the start of one and inside."""
  generator = np.random.default_rng(0)
  shape = (2, 4 * SEGMENT)
  tokens = generator.integers(config.vocab_size, size=shape, dtype=np.int32)
  resets = np.zeros(shape, bool)
  resets[0, 7] = resets[0, 12] = resets[1, 10] = resets[1, 16] = True
  return jnp.asarray(tokens), jnp.asarray(resets)


@pytest.mark.parametrize("mem_len", [0, 7])
@pytest.mark.parametrize("name", ["attention", kinds.mixer(attends=False)])
def test_parts_of_segments_equal_whole_segments(name, mem_len):
  """Two segments, two tokens at once, and then single tokens.

  With `same_length` all of them see as many keys as in whole segments.
  """
  config = tiny.model_config(layers=(name,), num_memory_tokens=SIZE)
  params = tiny.params(config)
  lengths = {
    "mem_len": mem_len,
    "segment_len": SEGMENT,
    "clamp_len": 0,
    "same_length": True,
  }
  tokens, resets = _text(config)

  whole = reader_lib.NetworkReader(config, **lengths)
  state = whole.start(params, batch_size=2)
  expected = []
  for start in range(0, tokens.shape[1], SEGMENT):
    part = slice(start, start + SEGMENT)
    hidden, state = _read(
      whole, params, state, tokens[:, part], resets[:, part]
    )
    expected.append(hidden)

  reader = reader_lib.Reader(config, **lengths)
  frozen = reader.freeze(params)
  state = reader.start(frozen, batch_size=2)
  found = []
  steps = [SEGMENT, SEGMENT, 2, *[1] * (2 * SEGMENT - 2)]
  ends = np.cumsum(steps)
  for index, (length, end) in enumerate(zip(steps, ends, strict=True)):
    part = slice(end - length, end)
    if index == 3:
      reader, frozen, state = reader.for_tokens(frozen, state)
    hidden, state = _read(
      reader, frozen, state, tokens[:, part], resets[:, part]
    )
    found.append(hidden)
  comparison.assert_close(
    jnp.concatenate(found, axis=1),
    jnp.concatenate(expected, axis=1),
    roundings=100,
  )


def test_padding_is_not_written():
  reader, frozen, start = _reader(mem_len=6, same_length=True)
  tokens, _ = _text(reader.config)

  def read(first, **count):
    """The states of two tokens, of three more, and of the next segment's."""
    hidden, state = _read(reader, frozen, start, first, **count)
    steps = [hidden[:, :2]]
    for rest in (tokens[:, 2:5], tokens[:, 5:6]):
      hidden, state = _read(reader, frozen, state, rest)
      steps.append(hidden)
    return steps

  padded = read(tokens[:, :SEGMENT].at[:, 2:].set(0), count=2)
  unpadded = read(tokens[:, :2])
  for found, expected in zip(padded, unpadded, strict=True):
    comparison.assert_close(found, expected, roundings=20)


@pytest.mark.parametrize("mem_len", [0, 6])
def test_a_step_is_of_one_segment(mem_len):
  """Also where the ring of a memory would have room for more."""
  reader, frozen, state = _reader(mem_len=mem_len, same_length=False)
  tokens, _ = _text(reader.config)
  _, state = reader.read(frozen, state, tokens[:, :2])
  for length in (4, SEGMENT):
    said = f"a step of {length} vectors does not fit behind"
    with pytest.raises(errors.UserError, match=said):
      reader.read(frozen, state, tokens[:, :length])


def test_memory_tokens_carry_a_text_without_other_memory():
  config = tiny.model_config(num_memory_tokens=SIZE)
  model = network.Network(config)
  variables = {"params": tiny.params(config)}
  tokens, _ = _text(config)
  start = network.empty_state(config, batch_size=2, mem_len=0, step_len=SEGMENT)
  _, after = model.apply(variables, tokens[:, :SEGMENT], start)
  other = (tokens + 1) % config.vocab_size
  _, after_other = model.apply(variables, other[:, :SEGMENT], start)
  for is_new in (False, True):
    resets = jnp.zeros((2, SEGMENT), bool).at[:, 0].set(is_new)
    rest = (tokens[:, SEGMENT : 2 * SEGMENT],)
    hidden, _ = model.apply(variables, *rest, after, resets)
    hidden_of_other, _ = model.apply(variables, *rest, after_other, resets)
    difference = jnp.abs(hidden - hidden_of_other).max()
    assert (difference > 1e-3) != is_new


@pytest.mark.parametrize("trains_memory", [False, True])
def test_what_is_written_learns_from_the_next_segment(trains_memory):
  config = tiny.model_config(num_memory_tokens=SIZE)
  model = network.Network(config, mixer.Settings(trains_memory=trains_memory))
  params = tiny.params(config)
  tokens, _ = _text(config)
  start = network.empty_state(config, batch_size=2, mem_len=0, step_len=SEGMENT)

  def loss(written):
    _, after = model.apply({"params": params}, tokens[:, :SEGMENT], start)
    after = after._replace(memory_tokens=after.memory_tokens + written)
    hidden, _ = model.apply(
      {"params": params}, tokens[:, SEGMENT : 2 * SEGMENT], after
    )
    return jnp.sum(jnp.square(hidden[:, :, 0]))

  gradient = jax.grad(loss)(jnp.zeros((2, SIZE, config.model_dim)))
  assert (jnp.abs(gradient).max() > 1e-4) == trains_memory


def test_lanes_are_dealt_out_with_their_memory_tokens():
  config = tiny.model_config(num_memory_tokens=SIZE)
  state = network.empty_state(config, batch_size=4, mem_len=2, step_len=SEGMENT)
  vectors = jnp.arange(4.0)[:, None, None] + jnp.zeros_like(state.memory_tokens)
  state = state._replace(memory_tokens=vectors)
  parts = lanes.split(state, 2)
  np.testing.assert_array_equal(
    parts.memory_tokens[:, :, 0, 0], [[0, 2], [1, 3]]
  )
  whole = lanes.merge(parts)
  np.testing.assert_array_equal(whole.memory_tokens, vectors)
  fewer = jax.jit(lanes.resize, static_argnums=1)(state, 3)
  np.testing.assert_array_equal(fewer.memory_tokens, vectors[:3])


def test_operations_are_those_of_all_rows():
  plain = tiny.model_config()
  config = tiny.model_config(num_memory_tokens=SIZE)
  lengths = {"segment_len": SEGMENT, "mem_len": 4}
  longer = {"segment_len": SEGMENT + 2 * SIZE, "mem_len": 4}
  head = network.forward_flops_per_token(
    tiny.model_config(num_layers=1), **longer
  )
  all_rows = network.forward_flops_per_token(plain, **longer)
  one_layer = (all_rows - head) / (plain.num_layers - 1)
  added = one_layer * plain.num_layers * 2 * SIZE / SEGMENT
  found = network.forward_flops_per_token(config, **lengths)
  assert found == pytest.approx(all_rows + added)


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("train.gradient_segments", 1, "passes no gradient"),
    ("model.memory_start", "zeros", "memory_start=masked"),
    ("model.encoding", "absolute", "encoding of distances"),
    ("train.segment_len_std", 2.0, "segment_len_std=0"),
    ("train.context_len", 4, "train.context_len=0"),
    ("eval.context_len", 4, "eval.context_len=0"),
    ("train.mem_len_low", 0, "always seen"),
  ],
)
def test_what_cannot_be_is_refused(name, value, message):
  values = {
    "model.num_memory_tokens": SIZE,
    "train.gradient_segments": 2,
    "train.mem_len": 0 if name.endswith(("std", "context_len")) else 8,
    "eval.mem_len": (0,) if name.endswith("context_len") else (8,),
  }
  config = tiny.config_dict(**(values | {name: value}))
  with pytest.raises(errors.UserError, match=message):
    load.from_config_dict(config)
