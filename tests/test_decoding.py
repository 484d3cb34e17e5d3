"""Drawing tokens: what may be drawn, how often, and by which key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_xl import decoding

DRAWS = 20_000


def frequencies(log_probs, **options):
  values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
  draw = functools.partial(decoding.draw, log_probs, **values)
  drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), DRAWS))
  return np.bincount(np.asarray(drawn), minlength=len(log_probs)) / DRAWS


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_draws_follow_the_temperature(temperature):
  log_probs = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
  expected = np.exp(np.asarray(log_probs) / temperature)
  expected /= expected.sum()
  drawn = frequencies(log_probs, temperature=temperature)
  # Four standard deviations of a frequency are below 0.015.
  np.testing.assert_allclose(drawn, expected, atol=0.015)


@pytest.mark.parametrize(
  ("options", "allowed"),
  [
    ({"top_k": 1}, [1]),
    ({"top_k": 2}, [1, 3]),
    ({"top_k": 9}, [0, 1, 2, 3]),
    ({"top_p": 0.01}, [1]),
    ({"top_p": 0.35}, [1]),
    ({"top_p": 0.36}, [1, 3]),
    ({"top_p": 0.9}, [0, 1, 2, 3]),
    ({"top_p": 0.8}, [0, 1, 3]),
    ({"top_k": 2, "top_p": 0.5}, [1]),  # Of the two, 0.54 is the first's.
    ({"top_p": 0.8, "temperature": 0.1}, [1]),  # After the temperature.
  ],
)
def test_the_unlikely_are_not_drawn_and_the_rest_as_before(options, allowed):
  probabilities = np.array([0.2, 0.35, 0.15, 0.3])
  drawn = frequencies(jnp.log(jnp.asarray(probabilities)), **options)
  assert np.flatnonzero(drawn).tolist() == allowed
  if "temperature" not in options:
    kept = probabilities[allowed] / probabilities[allowed].sum()
    np.testing.assert_allclose(drawn[allowed], kept, atol=0.015)


def test_a_temperature_of_zero_takes_the_likeliest():
  log_probs = jnp.log(jnp.array([0.3, 0.4, 0.3]))
  for seed in range(5):
    index = decoding.draw(
      log_probs, jax.random.key(seed), temperature=0, top_k=0, top_p=1.0
    )
    assert int(index) == 1
    assert index.dtype == jnp.int32


def guarded(recent, **options):
  """What guarding takes from the log-probabilities of the tokens 0 to 8."""
  values = {"penalty": 1.0, "ngram": 0, "vocab_size": 9} | options
  log_probs = jnp.zeros(9)
  recent = jnp.array(recent)
  return -decoding.guard(log_probs, jnp.arange(9), recent, **values)


def test_recent_tokens_become_less_likely():
  lower = guarded([9, 5, 7, 5], penalty=1.5)  # 9: nothing there.
  expected = np.zeros(9)
  expected[[5, 7]] = np.log(1.5)
  np.testing.assert_allclose(lower, expected)


@pytest.mark.parametrize(
  ("ngram", "banned"), [(0, []), (1, [1, 2, 3]), (2, [1, 3]), (3, [3]), (4, [])]
)
def test_a_run_of_tokens_does_not_come_again(ngram, banned):
  lower = guarded([9, 1, 2, 3, 2, 1, 1, 2], ngram=ngram)
  assert np.flatnonzero(np.asarray(lower) > 1e6).tolist() == banned
