"""Gated residuals: where they start, and how many parameters they have."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny
from transformer_xl.model import network
from transformer_xl.model import residual


def test_a_gate_starts_by_handing_the_stream_on():
  config = tiny.model_config(residual="gru", init_std=0.0)
  shape = (2, 2, 3, config.model_dim)
  stream, term = jax.random.normal(jax.random.key(0), shape)
  gate = residual.Gate(config)
  start = jax.jit(lambda key: gate.init_with_output(key, stream, term, None))
  out, _ = start(jax.random.key(1))
  # Matrices of zeros add nothing, and z is sigmoid(-2).
  expected = (1 - 1 / (1 + np.exp(2.0))) * np.float64(stream)
  np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_gates_have_as_many_parameters_as_the_specification_says():
  sizes = {}
  for kind in ("add", "gru"):
    config = tiny.model_config(residual=kind)
    params = network.abstract_params(config)
    sizes[kind] = sum(leaf.size for leaf in jax.tree.leaves(params))
  width = config.model_dim
  more = config.num_layers * (12 * width**2 + 2 * width)
  assert sizes["gru"] - sizes["add"] == more


def test_what_is_negative_in_a_term_does_not_count():
  config = tiny.model_config(residual="gru")
  gate = residual.Gate(config)
  stream = jnp.ones((1, 1, config.model_dim))
  params = jax.jit(lambda key: gate.init(key, stream, stream, None))(
    jax.random.key(0)
  )
  add = jax.jit(lambda term: gate.apply(params, stream, term, None))
  negative, nothing, some = map(add, (-stream, 0 * stream, stream))
  assert jnp.array_equal(negative, nothing)
  assert not jnp.array_equal(some, nothing)
