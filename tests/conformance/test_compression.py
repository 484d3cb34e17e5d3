"""Memory equals the oracle, in hidden states and in the ring."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import oracle
from tests import tiny
from tests.conformance import adapters
from tests.conformance import test_oracle
from transformer_xl.config import model_fields
from transformer_xl.model import kv_cache


class Case(NamedTuple):
  """A model and its lengths: T, M, C and c; without slots c is 1."""

  compression: str
  encoding: str = "relative"
  lengths: tuple[int, int, int, int] = (4, 3, 3, 2)
  same_length: bool = False
  model: tuple = ()


PRE_NORM = (("pre_norm", True),)
UNEQUAL = (("memory_lens", ((1, 3), (1, 0))),)
ESSENTIAL = (
  # Memory that is no multiple of c, and longer than, as long as and shorter
  # than the segment; slots for less and for more than leave with a segment.
  Case("mean"),
  Case("max", "rope", (8, 2, 1, 4), model=PRE_NORM),
  Case("conv", "relative", (2, 5, 4, 2), True, PRE_NORM),
)
REST = (
  Case("conv", "relative", (4, 4, 1, 4)),
  Case("mean", "relative", (3, 5, 3, 1), True),
  Case("conv", "relative", (4, 3, 2, 2), True, (("untie_biases", True),)),
  *(
    Case(kind, name, model=PRE_NORM if kind == "max" else ())
    for kind, name in itertools.product(
      ("mean", "max", "conv"), model_fields.ENCODINGS
    )
    if (kind, name) != ("mean", "relative")
  ),
  # Without slots, and with layers that remember less.
  *(Case("", name, (4, 6, 0, 1)) for name in model_fields.ENCODINGS),
  *(
    Case("", name, (4, 6, 0, 1), model=UNEQUAL)
    for name in model_fields.ENCODINGS
  ),
)
CASES = [
  *ESSENTIAL,
  *(pytest.param(case, marks=pytest.mark.rest) for case in REST),
]


def build(case, kind=adapters.Package):
  """The adapter of a case."""
  _, mem_len, compressed_len, rate = case.lengths
  return kind(
    mem_len=mem_len,
    same_length=case.same_length,
    compressed_len=compressed_len,
    compression=case.compression,
    compression_rate=rate,
    encoding=case.encoding,
    **dict(case.model),
  )


def steps(adapter, lengths):
  """Tokens and resets of steps, and what the oracle makes of them."""
  generator, params = np.random.default_rng(2), tiny.params(adapter.config)
  mem_len = [3, adapter.mem_len] if adapter.unequal else adapter.mem_len
  lanes = oracle.start(adapter.config, batch_size=2, mem_len=mem_len)
  tokens_read = 0
  for index, length in enumerate(lengths):
    shape = (2, length)
    tokens = generator.integers(adapter.vocab_size, size=shape, dtype=np.int32)
    resets = np.zeros(shape, bool)
    resets[0, 0] = index == 3
    resets[1, length // 2] = index in (2, 9)
    expected, lanes = oracle.segment(
      params,
      adapter.config,
      tokens,
      lanes,
      mem_len=mem_len,
      # They stay in memory until there are c to compress.
      waiting=tokens_read % adapter.config.compression_rate,
      same_length=adapter.same_length,
      compressed_len=adapter.compressed_len,
      resets=resets,
    )
    tokens_read += length
    yield jnp.asarray(tokens), jnp.asarray(resets), expected


def assert_close(actual, expected):
  difference = comparison.difference(actual, expected)
  assert difference < test_oracle.ROUNDING


@pytest.mark.parametrize("case", CASES, ids=str)
def test_segments_equal_the_oracle(case, strict_dtypes, counting):
  adapter = build(case)
  counting("oracle", adapter)
  memory = adapter.fresh(2)
  for tokens, resets, expected in steps(adapter, [case.lengths[0]] * 11):
    log_probs, memory = adapter.step(adapter.init(0), tokens, memory, resets)
    assert_close(log_probs, expected)
  # In the end a lane sees all that it has room for.
  assert memory.length[0] == adapter.mem_len + (
    adapter.compressed_len * adapter.config.compression_rate
  )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_of_the_ring_equal_the_oracle(case, strict_dtypes, counting):
  """Segments, a part of one, single tokens, and a segment after them."""
  adapter, segment_len = build(case), case.lengths[0]
  counting("oracle", build(case, adapters.reading(adapters.Package)))
  reader = kv_cache.Reader(
    adapter.config,
    mem_len=adapter.mem_len,
    segment_len=segment_len,
    clamp_len=0,
    same_length=adapter.same_length,
    compressed_len=adapter.compressed_len,
  )
  frozen = jax.jit(reader.freeze)(adapter.init(0))
  state = reader.start(frozen, batch_size=2)
  step = jax.jit(reader.step)
  lengths = [segment_len] * 10
  if not adapter.own_positions:
    rate = adapter.config.compression_rate
    lengths += [1, *[1] * (2 * rate)]
    if adapter.compresses:  # Else it would wrap around the ring.
      lengths.append(segment_len)
  for index, found in enumerate(steps(adapter, lengths)):
    tokens, resets, expected = found
    if index == 10:  # A segment of which one token counts.
      padded = jnp.tile(tokens, (1, segment_len))
      _, state = jax.jit(reader.read_part)(frozen, state, padded, 1)
      continue
    log_probs, state = step(frozen, state, tokens, resets)
    assert_close(log_probs, expected)
