"""Learned keys of distances: large distances share one."""

import jax
import jax.numpy as jnp

from tests import tiny


def test_distances_beyond_the_table_share_its_last_row():
  config = tiny.model_config(encoding="shaw", num_positions=3)
  params = tiny.params(config)
  inputs, _, memory = tiny.inputs(config)
  gradient = jax.grad(
    lambda params: tiny.apply(config, params, inputs, memory)[0].sum()
  )(params)["layers"]["0"]["attention"]["distances"]
  assert gradient.shape[1] == 3
  assert jnp.all(jnp.any(gradient != 0, axis=(0, 2)))
