"""Sampling: which tokens are drawn, how often, and by which key."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests import tiny
from transformer_xl.config import load
from transformer_xl.text import sampling

DEFAULTS = load.from_config_dict(tiny.config_dict())
DRAWS = 20_000
NEVER = -1e9  # Log-probability of an excluded token.


def settings(**options):
  """Settings of sampling that leave probabilities alone but for the options."""
  values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
  names = {f"generate.{name}": value for name, value in values.items()}
  return sampling.settings_of(load.replaced(DEFAULTS, names).generate)


def frequencies(log_probs, **options):
  draw = functools.partial(
    sampling.draw, log_probs, settings=settings(**options)
  )
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
    ({"top_k": 2, "top_p": 0.5}, [1]),  # The first has 0.54 of the two.
    ({"top_p": 0.8, "temperature": 0.1}, [1]),  # After the temperature.
  ],
)
def test_unlikely_tokens_are_not_drawn_and_the_others_as_before(
  options, allowed
):
  probabilities = np.array([0.2, 0.35, 0.15, 0.3])
  drawn = frequencies(jnp.log(jnp.asarray(probabilities)), **options)
  assert np.flatnonzero(drawn).tolist() == allowed
  if "temperature" not in options:
    kept = probabilities[allowed] / probabilities[allowed].sum()
    np.testing.assert_allclose(drawn[allowed], kept, atol=0.015)


def penalties(recent, *, penalty=1.0, ngram=0):
  """Penalties of the log-probabilities of the tokens 0 to 8."""
  chosen = settings(repetition_penalty=penalty, no_repeat_ngram=ngram)
  return -sampling.penalise_repetition(
    jnp.zeros(9),
    jnp.arange(9),
    jnp.array(recent),
    settings=chosen,
    vocab_size=9,
  )


def test_recent_tokens_become_less_likely():
  lower = penalties([9, 5, 7, 5], penalty=1.5)  # 9 stands for no token.
  expected = np.zeros(9)
  expected[[5, 7]] = np.log(1.5)
  np.testing.assert_allclose(lower, expected)


@pytest.mark.parametrize(
  ("ngram", "banned"), [(0, []), (1, [1, 2, 3]), (2, [1, 3]), (3, [3]), (4, [])]
)
def test_an_ngram_is_not_repeated(ngram, banned):
  lower = penalties([9, 1, 2, 3, 2, 1, 1, 2], ngram=ngram)
  assert np.flatnonzero(np.asarray(lower) > 1e6).tolist() == banned


@pytest.mark.parametrize("temperature", [1.0, 1e9, 1e20])
def test_no_temperature_brings_an_ngram_back(temperature):
  log_probs = -penalties([9, 1, 2, 3, 2, 1, 1, 2], ngram=2)
  found = frequencies(log_probs, temperature=temperature)
  assert np.flatnonzero(found == 0).tolist() == [1, 3]


OPTIONS = [
  {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
  {"temperature": 0.5, "top_k": 9, "top_p": 1.0},
  {"temperature": 1.0, "top_k": 1, "top_p": 0.5},
  {"temperature": 2.0, "top_k": 3, "top_p": 1.0},
  {"temperature": 1.0, "top_k": 4, "top_p": 0.75},
  {"temperature": 0.5, "top_k": 0, "top_p": 0.9},
  {"temperature": 1e-3, "top_k": 0, "top_p": 1e-3},
]


@functools.cache
def draws(temperature, top_k, top_p):
  """Marks the tokens that occur in 2048 draws."""
  chosen = settings(temperature=temperature, top_k=top_k, top_p=top_p)
  draw = functools.partial(sampling.draw, settings=chosen)
  keys = jax.random.split(jax.random.key(1), 2048)
  return jax.jit(lambda log_probs: jax.vmap(draw, (None, 0))(log_probs, keys))


def kept_by_sorting(log_probs, temperature, top_k, top_p):
  """Tokens that must be possible, and those that rounding may add.

  Among equals the one with the lower index is the likelier.
  """
  order = np.argsort(-log_probs, kind="stable")[: top_k or len(log_probs)]
  values = (log_probs[order] - log_probs.max()) / temperature
  probabilities = np.exp(values) / np.exp(values).sum()
  before = np.cumsum(probabilities) - probabilities
  before[0] = -1.0
  drawable = probabilities > 0
  if top_p == 1:
    return set(order[drawable]), set(order[drawable])
  surely, perhaps = before < top_p - 1e-6, before < top_p + 1e-6
  return set(order[surely & drawable]), set(order[perhaps & drawable])


# Multiples of 1/4 give ties. The rarest kept token has a probability of 1/150
# at temperature 1/2, and (1 - 1/150)^2048 is 1e-6, so 2048 draws miss none.
@hypothesis.given(
  st.sampled_from(OPTIONS),
  st.lists(
    st.sampled_from([0.0, -0.25, -0.5, -0.75, -1.5, NEVER]),
    min_size=6,
    max_size=6,
  ),
)
def test_tokens_are_those_that_a_sort_keeps(options, log_probs):
  log_probs = np.array(log_probs)
  surely, perhaps = kept_by_sorting(log_probs, **options)
  drawn = draws(**options)(jnp.asarray(log_probs, jnp.float32))
  drawn = set(np.asarray(drawn).tolist())
  assert drawn <= perhaps
  if options["temperature"] >= 0.5:
    assert surely <= drawn


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-30])
@pytest.mark.parametrize("top_k", [0, 2])
def test_a_tiny_temperature_takes_the_likeliest(temperature, top_k):
  log_probs = jnp.array([-3.0, -0.5, -2.0, -0.75])
  chosen = settings(temperature=temperature, top_k=top_k)
  for seed in range(3):
    index = sampling.draw(log_probs, jax.random.key(seed), settings=chosen)
    assert int(index) == 1
    assert index.dtype == jnp.int32


def test_a_temperature_of_zero_takes_the_first_of_equals():
  log_probs, key = jnp.array([-2.0, -1.0, -1.0]), jax.random.key(0)
  index = sampling.draw(log_probs, key, settings=settings(temperature=0.0))
  assert int(index) == 1


@functools.cache
def compiled_guard(ngram, penalty):
  return jax.jit(functools.partial(penalties, ngram=ngram, penalty=penalty))


@hypothesis.given(
  st.sampled_from([(0, 1.5), (1, 1.0), (2, 2.0), (3, 1.0)]),
  st.lists(st.integers(0, 3), max_size=8),
)
def test_penalties_equal_a_search_through_the_list(rule, tokens):
  ngram, penalty = rule
  recent = [9] * (8 - len(tokens)) + tokens
  lower = compiled_guard(ngram, penalty)(jnp.array(recent))
  expected = np.zeros(9)
  expected[tokens] = np.log(penalty)
  for start in range(len(tokens) - ngram + 1 if ngram else 0):
    *run, end = tokens[start : start + ngram]
    if run == tokens[len(tokens) - ngram + 1 :]:
      expected[end] = 1e30
  np.testing.assert_allclose(lower, expected, rtol=1e-6)
