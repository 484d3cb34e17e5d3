"""Retrieval reads what lies far back, and gives it no gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

TOKENS = jnp.array([[7, 1, 2, 3, 4, 5, 6, 1]])


def test_what_is_retrieved_has_no_gradient():
  """Wu et al. 2022, section 3.2. The window is 2, so token 0 is far back."""
  config = tiny.model_config(
    layers=("memorizing",), num_layers=1, tie_weights=False
  )
  model = network.Network(config, mixer.Settings())
  state = network.empty_state(config, batch_size=1, mem_len=0, step_len=8)

  def last(params, tokens):
    nll, _ = model.apply(
      {"params": params}, tokens, TOKENS, state, method="nll"
    )
    return nll[0, -1]

  params = tiny.params(config)
  assert config.memorizing.window == 2
  value_and_gradient = jax.jit(jax.value_and_grad(last))
  value, gradient = value_and_gradient(params, TOKENS)
  assert value != value_and_gradient(params, TOKENS.at[0, 0].set(8))[0]
  (table,) = jax.tree.leaves(gradient["embedding"])
  assert not np.any(table[7])
  assert np.any(table[1])
  assert np.any(table[6])


def test_retrieval_counts_its_scores_and_values():
  """Beyond a window of 2, keys have scores, and 4 values are retrieved."""
  near, far = (
    network.forward_flops_per_token(
      tiny.model_config(layers=("memorizing",)), segment_len=4, mem_len=mem_len
    )
    for mem_len in (2, 9)
  )
  # Of the 4 tokens, with a memory of 2 and with one of 9.
  scores = (7 + 8 + 9 + 10) / 4 - (0 + 1 + 2 + 3) / 4
  values = 4 - (0 + 1 + 2 + 3) / 4
  assert far - near == 2 * 2 * 8 * (
    scores + values
  )  # Two layers, two heads [4].
