"""Models whose layers learn vectors of positions draw as they always have."""

import functools

import jax
import numpy as np
import pytest

from tests import tiny
from transformer_xl.model import network


def test_numbers_of_layers_that_are_alike_do_not_depend_on_their_place():
  """They were drawn and dropped without the place's name in random keys."""
  config = tiny.model_config(
    dropout_rate=0.3,
    weight_dropout_rate=0.5,
    attention_dropout_rate=0.2,
    encoding="absolute_per_layer",
  )
  draw = jax.jit(functools.partial(network.init_params, config))
  layer = draw(jax.random.key(0))["layers"]["0"]
  query = layer["attention"]["query"][:, 0, 0]
  np.testing.assert_allclose(query, [-0.03507269, 0.01857615], rtol=1e-5)
  positions = layer["positions"][:, 0, 0]
  np.testing.assert_allclose(positions, [-0.01825868, -0.02773958], rtol=1e-5)
  loss = tiny.mean_nll(config, tiny.params(config), key=0)
  assert loss == pytest.approx(3.5195663, rel=1e-6)
