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
