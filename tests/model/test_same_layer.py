"""How far layers that attend to their own outputs see."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer


def reach_of(layers):
  """The segments in which a change of the first token shows."""
  config = tiny.model_config(layers=layers, num_layers=2)
  params = tiny.params(config)

  @jax.jit
  def read(state, tokens, resets):
    model = network.Network(config, mixer.Settings())
    return model.bind({"params": params}).log_probs(tokens, state, resets)

  def outputs(first):
    tokens = np.full((1, 10), 3)
    tokens[0, 0] = first
    state = network.empty_state(config, batch_size=1, mem_len=2, step_len=2)
    result = []
    for segment in np.split(tokens, 5, axis=1):
      none = jnp.zeros((1, 2), bool)
      log_probs, state = read(state, jnp.asarray(segment, jnp.int32), none)
      result.append(log_probs)
    return result

  pairs = zip(outputs(1), outputs(2), strict=True)
  return [bool(jnp.any(one != other)) for one, other in pairs]


def test_information_stays_in_its_layer_without_a_limit():
  """Two layers of attention see two segments back, and no farther."""
  assert reach_of(("attention",)) == [True] * 3 + [False] * 2
  assert reach_of(("same_layer",)) == [True] * 5


def test_the_parameters_are_those_of_attention():
  def shapes_of(name):
    config = tiny.model_config(layers=(name,))
    params = network.abstract_params(config)["layers"]["0"][name]
    return {path: leaf.shape for path, leaf in params.items()}

  assert shapes_of("same_layer") == shapes_of("attention")
