"""Random models read a text alike, however it is cut, and as the oracle does.

The mixers, their limits, the encoding and the lengths are drawn together, so
pairs of settings meet that no other test combines.
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracle
from tests import oracles
from tests.conformance import adapters
from tests.conformance import test_oracle
from transformer_xl.config import registry
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib

pytestmark = pytest.mark.rest

LANES = 2
NUM_SEGMENTS = 5
ROUNDING = 5 * test_oracle.ROUNDING  # Up to four layers, and longer texts.


class Text(NamedTuple):
  """Tokens and resets [B, T], and the oracle's log-probabilities [B, T, V]."""

  tokens: np.ndarray
  resets: np.ndarray
  expected: np.ndarray


def draw_layers(generator) -> tuple[str, ...]:
  """A pattern of one to three mixers, some of them with a limit."""
  layers = []
  for _ in range(generator.integers(1, 4)):
    name = str(generator.choice([*registry.mixers]))
    if registry.mixers[name].takes_limit and generator.random() < 0.4:
      name += f":{generator.integers(1, 8)}"
    layers.append(name)
  return tuple(layers)


def draw_fields(generator) -> dict[str, Any]:
  """Values of the fields that single mixers have."""
  return {
    f"{name}.{field}": generator.choice(values).item()
    for name in registry.mixers
    for field, values in oracles.get(name, "DRAWN", {}).items()
  }


def draw_adapter(generator) -> tuple[adapters.Package, int]:
  """A model with a length of memory, and a length of segments."""
  encoding = str(generator.choice([*registry.encodings]))
  clamps = registry.encodings[encoding].clamps
  layers = draw_layers(generator)
  options: dict[str, Any] = {
    "layers": layers,
    "num_layers": len(layers),
    "encoding": encoding,
    "pre_norm": bool(generator.integers(2)),
    "norm": str(generator.choice(["layer", "rms"])),
    "residual": str(generator.choice(["add", "add", "gru"])),
    **draw_fields(generator),
    "same_length_window": str(
      generator.choice(["mem_len", "mem_len_plus_one"])
    ),
  }
  adapter = adapters.Package(
    mem_len=int(generator.choice([0, 0, 1, 3, 5, 9])),
    same_length=bool(generator.integers(2)),
    clamp_len=int(generator.choice([0, 4])) if clamps else 0,
    **options,
  )
  return adapter, int(generator.integers(1, 9))


def draw_text(generator, adapter, segment_len: int, num_first: int) -> Text:
  """Random tokens, read by the oracle in segments.

  Resets are anywhere but at the `num_first` tokens.
  """
  shape = (LANES, NUM_SEGMENTS * segment_len)
  tokens = generator.integers(adapter.vocab_size, size=shape, dtype=np.int32)
  resets = generator.random(shape) < generator.choice([0, 0.05, 0.2])
  resets[:, :num_first] = False
  lanes = oracle.start(
    adapter.config, batch_size=LANES, mem_len=adapter.mem_len
  )
  expected = []
  for start in range(0, shape[1], segment_len):
    part = slice(start, start + segment_len)
    log_probs, lanes = oracle.segment(
      adapter.init(0),
      adapter.config,
      tokens[:, part],
      lanes,
      mem_len=adapter.mem_len,
      clamp_len=adapter.clamp_len,
      same_length=adapter.same_length,
      waiting=oracle.waiting(adapter.config, start),
      resets=resets[:, part],
    )
    expected.append(log_probs)
  return Text(tokens, resets, np.concatenate(expected, axis=1))


def read(step, state, text: Text, lengths: list[int]) -> np.ndarray:
  """What `step(state, tokens, resets)` makes of a text in steps."""
  found = []
  start = 0
  for length in lengths:
    part = slice(start, start + length)
    log_probs, state = step(
      state, jnp.asarray(text.tokens[:, part]), text.resets[:, part]
    )
    found.append(log_probs)
    start += length
  return np.concatenate(found, axis=1)


def assert_equal(actual: jax.Array | np.ndarray, expected: np.ndarray) -> None:
  worst = np.abs(actual - expected).max() / np.abs(expected).max()
  assert worst < ROUNDING


@pytest.mark.parametrize("seed", range(16, 24))
def test_segments_and_single_tokens_equal_the_oracle(seed, monkeypatch):
  generator = np.random.default_rng(seed)
  for name in registry.mixers:
    # What is computed in blocks of a fixed size has small ones, too.
    for block, sizes in oracles.get(name, "BLOCKS", {}).items():
      module = sys.modules[registry.mixers[name].__module__]
      monkeypatch.setattr(module, block, generator.choice(sizes).item())
  adapter, segment_len = draw_adapter(generator)
  num_first = int(generator.integers(segment_len))
  text = draw_text(generator, adapter, segment_len, num_first)
  segments = [segment_len] * NUM_SEGMENTS
  params = adapter.init(0)

  memory = network.empty_state(
    adapter.config,
    batch_size=LANES,
    mem_len=adapter.mem_len,
    step_len=segment_len,
  )
  found = read(
    lambda memory, tokens, resets: adapter.step(params, tokens, memory, resets),
    memory,
    text,
    segments,
  )
  assert_equal(found, text.expected)

  reader = reader_lib.Reader(
    adapter.config,
    mem_len=adapter.mem_len,
    segment_len=segment_len,
    clamp_len=adapter.clamp_len,
    same_length=adapter.same_length,
  )
  frozen = jax.jit(reader.freeze)(params)
  step = jax.jit(reader.step)
  state = reader.start(frozen, batch_size=LANES)
  found = read(
    lambda state, *segment: step(frozen, state, *segment), state, text, segments
  )
  assert_equal(found, text.expected)

  # A single token sees fewer keys than the last one of a segment, unless all
  # tokens see equally many or nothing before their segment.
  sees_alike = adapter.same_length or not adapter.mem_len
  if adapter.compresses or not sees_alike:
    return
  state = reader.start(frozen, batch_size=LANES)
  if num_first:  # They count, and the rest of the segment is padding.
    padded = text.tokens[:, :segment_len].copy()
    padded[:, num_first:] = 0
    hidden, state = jax.jit(reader.read)(
      frozen, state, padded, count=jnp.int32(num_first)
    )
    log_probs = adaptive_softmax.log_probs(hidden, reader.head(frozen))
    assert_equal(log_probs[:, :num_first], text.expected[:, :num_first])
  reader, frozen, state = reader.for_tokens(frozen, state)
  step = jax.jit(reader.step)
  rest = Text(
    tokens=text.tokens[:, num_first:],
    resets=text.resets[:, num_first:],
    expected=text.expected[:, num_first:],
  )
  found = read(
    lambda state, *token: step(frozen, state, *token),
    state,
    rest,
    [1] * rest.tokens.shape[1],
  )
  assert_equal(found, rest.expected)
