"""With `same_length`, results do not depend on how a text is cut.

But for mixers that write or compress once a segment, and encodings that count
from its start.
"""

import functools

import jax
import numpy as np
import pytest

from tests import kinds
from tests import tiny
from transformer_xl.config import registry
from transformer_xl.model import reader as reader_lib

LENGTH = 12
MEMORY = 3
# One pass, segments, and a segment before single tokens.
CUTS = [[12], [4] * 3, [4] + [1] * 8]
# Two that depend on cuts, each for its own reason, and two that do not.
CHARACTERISTIC = (
  kinds.USUAL,
  kinds.mixer(writes_segments=True),
  kinds.compressing(),
  kinds.recurrent(),
)


@functools.cache
def start(config, segment_len):
  """How a text is read, the parameters as they are read, and the state."""
  reader = reader_lib.Reader(
    config,
    mem_len=MEMORY,
    segment_len=segment_len,
    clamp_len=0,
    same_length=True,
    step_len=LENGTH,
  )
  frozen = jax.jit(reader.freeze)(tiny.params(config))
  return jax.jit(reader.step), frozen, reader.start(frozen, batch_size=1)


def log_probs(config, cuts):
  """Log-probabilities of a text that is read in these steps, [T, V]."""
  read, frozen, state = start(config, cuts[0])
  tokens = np.random.default_rng(2).integers(config.vocab_size, size=LENGTH)
  result = []
  for part in np.split(tokens.astype(np.int32), np.cumsum(cuts)[:-1]):
    step, state = read(frozen, state, part[None])
    result.append(np.asarray(step[0]))
  return np.concatenate(result)


def largest_difference(**model):
  config = tiny.model_config(**model)
  whole, *others = (log_probs(config, cuts) for cuts in CUTS)
  return max(np.abs(other - whole).max() for other in others)


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=() if name in CHARACTERISTIC else pytest.mark.rest)
    for name in registry.mixers
  ],
)
def test_a_mixer_depends_on_cuts_only_if_it_works_once_a_segment(name):
  difference = largest_difference(layers=(name,))
  mixer = registry.mixers[name]
  if mixer.writes_segments or not mixer.keys_are_tokens:
    assert difference > 0.01
  else:
    assert difference < 1e-4  # Sums of float32 in another order.


@pytest.mark.some(2)
@pytest.mark.parametrize("encoding", [*registry.encodings])
def test_an_encoding_depends_on_cuts_only_if_it_counts_from_segments(encoding):
  difference = largest_difference(encoding=encoding, num_positions=32)
  if registry.encodings[encoding].counts_from_segment:
    assert difference > 0.01
  else:
    assert difference < 1e-4  # Sums of float32 in another order.
