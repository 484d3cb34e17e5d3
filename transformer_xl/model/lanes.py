"""The lanes of a network's state: parts of a batch, and empty lanes.

In the states of layers, lanes follow the turns of the pattern, [N / P, B, ...];
arrays with one axis are the same for all lanes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl.model import network


def split(state: network.State, parts: int) -> network.State:
  """Deals the lanes out to `parts` states, stacked on a new first axis.

  Neighbouring lanes go to different parts, so that no lane leaves its device.
  """

  def split_leaf(array: jax.Array, axis: int | None) -> jax.Array:
    if axis is None:
      return jnp.broadcast_to(array[None], (parts, *array.shape))
    return split_axis(array, axis, parts)

  return _map_lanes(split_leaf, state)


def split_axis(array: jax.Array, axis: int, parts: int) -> jax.Array:
  """Splits the lanes on one axis, [.., B, ..], as `split` does."""
  lanes = array.shape[axis] // parts
  shape = (*array.shape[:axis], lanes, parts, *array.shape[axis + 1 :])
  return jnp.moveaxis(array.reshape(shape), axis + 1, 0)


def merge(states: network.State) -> network.State:
  """Puts the lanes of stacked parts together again, as before `split`."""

  def merge_leaf(array: jax.Array, axis: int | None) -> jax.Array:
    if axis is None:
      return array[0]
    moved = jnp.moveaxis(array, 0, axis + 1)
    lanes = moved.shape[axis] * moved.shape[axis + 1]  # A state can be empty.
    shape = (*moved.shape[:axis], lanes, *moved.shape[axis + 2 :])
    return moved.reshape(shape)

  return _map_lanes(merge_leaf, states, first_axes=1)


def resize(state: network.State, num_lanes: int) -> network.State:
  """Drops the last lanes or adds empty ones, split by lanes over the mesh."""

  def resize_leaf(array: jax.Array, axis: int | None) -> jax.Array:
    if axis is None or array.shape[axis] == num_lanes:
      return array
    missing = num_lanes - array.shape[axis]
    if missing < 0:
      return jax.lax.slice_in_dim(array, 0, num_lanes, axis=axis)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    spec = P(*[None] * axis, mesh_lib.LANES)
    return jax.lax.with_sharding_constraint(jnp.pad(array, widths), spec)

  return _map_lanes(resize_leaf, state)


def _map_lanes(
  function: Callable[[jax.Array, int | None], jax.Array],
  state: network.State,
  *,
  first_axes: int = 0,
) -> network.State:
  """Applies `function(array, axis of the lanes)` to all arrays.

  The axis does not count the `first_axes` in front of a state's own.
  """

  def apply(array: jax.Array) -> jax.Array:
    has_lanes = array.ndim - first_axes > 1
    return function(array, 1 if has_lanes else None)

  def by_lanes(array: jax.Array) -> jax.Array:
    return function(array, 0)

  return network.State(
    jax.tree.map(apply, state.layers),
    by_lanes(state.length),
    jax.tree.map(by_lanes, state.memory_tokens),
  )
