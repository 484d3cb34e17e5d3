"""Lanes of any arrays that the state of a mixer may have."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.model import lanes
from transformer_xl.model import network

LAYERS, LANES = 3, 4
ONE_DEVICE = schema.MeshConfig(data=1, fsdp=1, tensor=1)


def numbered(*shape):
  return jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape)


STATE = network.State(
  layers=(
    numbered(LAYERS),  # The same for all lanes.
    numbered(LAYERS, LANES),
    numbered(LAYERS, LANES, 2),
    numbered(LAYERS, LANES, 2, 5),
  ),
  length=numbered(LANES),
)


def test_lanes_are_dealt_out_and_put_together_again():
  parts = lanes.split(STATE, 2)
  for part in range(2):
    own = jax.tree.map(lambda array, part=part: array[part], parts)
    np.testing.assert_array_equal(own.length, STATE.length[part::2])
    np.testing.assert_array_equal(own.layers[0], STATE.layers[0])
    for array, whole in zip(own.layers[1:], STATE.layers[1:], strict=True):
      np.testing.assert_array_equal(array, whole[:, part::2])
  jax.tree.map(np.testing.assert_array_equal, lanes.merge(parts), STATE)


def test_empty_lanes_are_added_last_and_dropped_again():
  with jax.set_mesh(mesh_lib.make_mesh(ONE_DEVICE)):
    more = jax.jit(lanes.resize, static_argnums=1)(STATE, 6)
  assert more.length.tolist() == [0, 1, 2, 3, 0, 0]
  assert more.layers[0].shape == (LAYERS,)
  for array in more.layers[1:]:
    assert array.shape[:2] == (LAYERS, 6)
    assert not array[:, LANES:].any()
  for count in (LANES + 1, LANES):  # Two lanes are dropped, one by one.
    more = lanes.resize(more, count)
    assert more.length.shape == (count,)
  jax.tree.map(np.testing.assert_array_equal, more, STATE)
