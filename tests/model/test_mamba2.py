"""The chunks of Mamba-2 equal its recurrence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import mamba2

LANES, LENGTH, HEADS, CHANNELS, SIZE = 2, 13, 2, 5, 3
# Sums over a dozen tokens, in another order.
ROUNDINGS = 60


def arguments():
  """Random rows, decays and states; some tokens start a document."""
  generator = np.random.default_rng(0)
  draw = generator.standard_normal
  resets = np.zeros((LANES, LENGTH), bool)
  resets[0, [0, 5, 6, 11]] = True
  tokens = mamba2.TokenInputs(
    query=draw((LANES, LENGTH, 1, SIZE)),
    key=draw((LANES, LENGTH, 1, SIZE)),
    value=draw((LANES, LENGTH, HEADS, CHANNELS)),
    log_decay=-generator.exponential(size=(LANES, LENGTH, HEADS)),
    resets=resets,
  )
  return tokens, draw((LANES, HEADS, SIZE, CHANNELS))


def token_by_token(tokens, states):
  """The recurrence as it is written."""
  outputs = np.zeros_like(tokens.value)
  states = states.copy()
  for lane, t, head in np.ndindex(LANES, LENGTH, HEADS):
    state = states[lane, head] * (not tokens.resets[lane, t])
    state = np.exp(tokens.log_decay[lane, t, head]) * state
    state = state + np.outer(
      tokens.key[lane, t, 0], tokens.value[lane, t, head]
    )
    outputs[lane, t, head] = tokens.query[lane, t, 0] @ state
    states[lane, head] = state
  return outputs, states


@pytest.mark.parametrize("chunk_len", [1, 4, 13])
def test_chunks_of_any_length_equal_single_tokens(chunk_len):
  tokens, states = arguments()
  read = jax.jit(mamba2.read_chunks, static_argnames="chunk_len")
  narrow = mamba2.TokenInputs(
    *(jnp.asarray(x, jnp.float32) for x in tokens[:-1]), tokens.resets
  )
  actual = read(narrow, jnp.asarray(states, jnp.float32), chunk_len=chunk_len)
  expected = token_by_token(tokens, states)
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def test_the_number_of_parameters_is_that_of_the_specification():
  config = tiny.model_config(layers=("mamba2",))
  layer = jax.eval_shape(
    lambda key: network.init_params(config, key), jax.random.key(0)
  )["layers"]["0"]["mamba2"]
  heads = config.num_heads
  size, channels = config.mamba2.state_dim, config.mamba2.value_dim
  width = heads * channels
  expected = (
    config.model_dim * (3 * width + 2 * size + heads)
    + 5 * (width + 2 * size)
    + 3 * heads
    + width
  )
  actual = sum(leaf.size for leaf in jax.tree.leaves(layer))
  assert actual == expected * config.num_layers
