"""A network of `titans` takes the steps of its loss, and remembers by them."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import comparison
from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import titans

LANES, LENGTH, HEADS, KEYS, VALUES, HIDDEN = 2, 7, 2, 4, 5, 6
# Sums over a few tokens and widths, in another order.
ROUNDINGS = 60
read_tokens = jax.jit(titans.read_tokens)


def weights(generator, *lanes):
  """Random matrices of the networks of all heads."""
  draw = generator.standard_normal
  return titans.NetworkWeights(
    jnp.asarray(draw((*lanes, HEADS, KEYS, HIDDEN)), jnp.float32),
    jnp.asarray(draw((*lanes, HEADS, HIDDEN, VALUES)), jnp.float32),
  )


def answer(weights, key):
  """One network's."""
  return jax.nn.silu(key @ weights.first) @ weights.second


def tokens(generator, *, rate, forget, keep):
  def rows(width):
    drawn = generator.standard_normal((LANES, LENGTH, HEADS, width))
    return jnp.asarray(drawn, jnp.float32)

  def gate(value):
    return jnp.full((LANES, LENGTH, HEADS), value, jnp.float32)

  return titans.TokenInputs(
    query=rows(KEYS),
    key=rows(KEYS),
    value=rows(VALUES),
    rate=gate(rate),
    forget=gate(forget),
    keep=gate(keep),
    resets=jnp.zeros((LANES, LENGTH), bool),
    counts=jnp.ones((LANES, LENGTH), bool),
  )


def nothing_learned(start):
  """Zeros for each lane."""
  return jax.tree.map(lambda x: jnp.zeros((LANES, *x.shape)), start)


def first_token(drawn):
  """The first token of each lane alone."""
  return jax.tree.map(lambda rows: rows[:, :1], drawn)


def test_a_step_follows_the_gradient_of_the_squared_distance():
  generator = np.random.default_rng(0)
  start = weights(generator)
  nothing = nothing_learned(start)
  drawn = tokens(generator, rate=0.5, forget=0.0, keep=0.0)
  one = first_token(drawn)
  _, learned, momentum = read_tokens(one, start, nothing, nothing)

  def loss(weights, key, value):
    return jnp.sum(jnp.square(answer(weights, key) - value))

  by_head = jax.vmap(jax.grad(loss))
  gradient = jax.vmap(by_head, in_axes=(None, 0, 0))(
    start, one.key[:, 0], one.value[:, 0]
  )
  expected = jax.tree.map(
    lambda slope: (
      -0.5 * slope / jnp.sqrt(1 + (slope**2).sum((-2, -1))[..., None, None])
    ),
    gradient,
  )
  comparison.assert_close(learned, expected, roundings=ROUNDINGS)
  comparison.assert_close(momentum, expected, roundings=ROUNDINGS)


def test_a_network_that_is_taught_a_pair_answers_its_key():
  generator = np.random.default_rng(1)
  start = weights(generator)
  nothing = nothing_learned(start)
  drawn = tokens(generator, rate=0.05, forget=0.0, keep=0.5)
  # One pair, again and again, and its key as the question.
  pair = titans.TokenInputs(
    *(jnp.repeat(x[:, :1], 200, axis=1) for x in drawn)
  )._replace(query=jnp.repeat(drawn.key[:, :1], 200, axis=1))
  outputs, _, _ = read_tokens(pair, start, nothing, nothing)
  distance = np.linalg.norm(outputs - pair.value, axis=-1)
  assert np.all(distance[:, -1] < 0.1 * distance[:, 0])


def test_a_network_that_forgets_all_has_nothing_left():
  generator = np.random.default_rng(2)
  start = weights(generator)
  nothing = nothing_learned(start)
  drawn = tokens(generator, rate=0.0, forget=1.0, keep=0.0)
  outputs, _, _ = read_tokens(drawn, start, nothing, nothing)
  np.testing.assert_allclose(outputs, 0, atol=1e-5)


def test_the_number_of_parameters_is_that_of_the_specification():
  config = tiny.model_config(layers=("titans",))
  layer = jax.eval_shape(
    lambda key: network.init_params(config, key), jax.random.key(0)
  )["layers"]["0"]["titans"]
  heads = config.num_heads
  own = config.titans
  keys, values, hidden = own.key_dim, own.value_dim, own.hidden_dim
  expected = (
    config.model_dim * heads * (2 * keys + 3 * values + 3)
    + 4 * heads * (2 * keys + values)
    + heads * hidden * (keys + values)
    + 3 * heads
    + values
  )
  actual = sum(leaf.size for leaf in jax.tree.leaves(layer))
  assert actual == expected * config.num_layers
