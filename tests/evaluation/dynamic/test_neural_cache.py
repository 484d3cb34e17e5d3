"""The neural cache against loops over its definition in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from transformer_xl.evaluation.dynamic import neural_cache

LANES, LENGTH, DIM, WORDS = 2, 24, 3, 5
MIXTURE = neural_cache.Mixture(jnp.float32(0.7), jnp.float32(0.3))


def text(seed=0):
  """Hidden states, the tokens that follow them, and the model's losses."""
  generator = np.random.default_rng(seed)
  hidden = generator.standard_normal((LANES, LENGTH, DIM)).astype("float32")
  words = generator.integers(WORDS, size=(LANES, LENGTH)).astype("int32")
  nll = generator.uniform(0.1, 3, (LANES, LENGTH)).astype("float32")
  return hidden, words, nll


def brute_force(hidden, words, nll, *, size, mixture=MIXTURE, begin=0):
  """Loops over tokens; `begin` is where the text starts."""
  theta, share = map(float, mixture)
  result = np.array(nll, np.float64)
  for lane in range(LANES):
    for t in range(begin, LENGTH):
      weights = dict.fromkeys(range(WORDS), 0.0)
      for i in range(max(t - size, begin), t):
        score = theta * float(
          np.dot(hidden[lane, t].astype(float), hidden[lane, i].astype(float))
        )
        weights[int(words[lane, i])] += math.exp(score)
      total = sum(weights.values())
      if total:
        p_cache = weights[int(words[lane, t])] / total
        p_model = math.exp(-float(nll[lane, t]))
        result[lane, t] = -math.log((1 - share) * p_model + share * p_cache)
  return result


def in_segments(
  hidden, words, nll, *, size, segment_len, mixture=MIXTURE, begin=0
):
  """The same with the package, as evaluation calls it."""
  cache = neural_cache.empty(batch_size=LANES, size=size, model_dim=DIM)
  parts = []
  for start in range(0, LENGTH, segment_len):
    here = slice(start, start + segment_len)
    is_text = np.arange(LENGTH)[here] >= begin
    known = np.where(is_text[None], words[:, here], -1)
    new, cache = segment(
      cache, hidden[:, here], words[:, here], nll[:, here], known, mixture
    )
    parts.append(new)
  return np.concatenate(parts, axis=1)


@jax.jit
def segment(cache, hidden, words, nll, known, mixture):
  pairs, cache = neural_cache.append(cache, hidden, known)
  similarities = neural_cache.similarity(hidden, pairs)
  return neural_cache.losses(nll, words, pairs, similarities, mixture), cache


@pytest.mark.parametrize(
  ("size", "segment_len"), [(5, 8), (8, 8), (11, 4), (40, 6), (1, 24)]
)
def test_every_loss_equals_the_definition(size, segment_len):
  arrays = text()
  found = in_segments(*arrays, size=size, segment_len=segment_len)
  expected = brute_force(*arrays, size=size)
  # Sums of at most 40 exponentials.
  comparison.assert_close(found, expected, roundings=30)
  assert np.max(np.abs(expected - arrays[2])) > 0.1


def test_tokens_before_the_text_are_not_cached():
  arrays = text()
  found = in_segments(*arrays, size=7, segment_len=8, begin=5)
  expected = brute_force(*arrays, size=7, begin=5)
  comparison.assert_close(found[:, 5:], expected[:, 5:], roundings=30)
  # The first token has no pairs: the model predicts alone.
  np.testing.assert_array_equal(found[:, 5], arrays[2][:, 5])


def test_a_share_of_zero_is_the_model_to_the_bit():
  arrays = text()
  none = MIXTURE._replace(share=jnp.float32(0))
  found = in_segments(*arrays, size=9, segment_len=8, mixture=none)
  np.testing.assert_array_equal(found, arrays[2])


def test_a_word_changes_nothing_before_it_and_no_other_lane():
  hidden, words, nll = text()
  read = functools.partial(in_segments, size=9, segment_len=8)
  before = read(hidden, words, nll)
  changed = words.copy()
  changed[0, 11] = (changed[0, 11] + 1) % WORDS
  after = read(hidden, changed, nll)
  np.testing.assert_array_equal(after[0, :11], before[0, :11])
  np.testing.assert_array_equal(after[1], before[1])
  assert np.all(after[0, 11:13] != before[0, 11:13])
  other = hidden.copy()
  other[0, 11] += 1
  after = read(other, words, nll)
  np.testing.assert_array_equal(after[0, :11], before[0, :11])
  np.testing.assert_array_equal(after[1], before[1])


def test_probabilities_of_all_words_sum_to_one():
  hidden, words, nll = map(jnp.asarray, text())
  total = np.zeros((LANES, LENGTH))
  pairs, _ = neural_cache.append(
    neural_cache.empty(batch_size=LANES, size=6, model_dim=DIM), hidden, words
  )
  similarities = neural_cache.similarity(hidden, pairs)
  uniform = jnp.full(nll.shape, math.log(WORDS))
  for word in range(WORDS):
    targets = jnp.full(words.shape, word)
    total += np.exp(
      -neural_cache.losses(uniform, targets, pairs, similarities, MIXTURE)
    )
  np.testing.assert_allclose(total, 1, rtol=1e-5)
