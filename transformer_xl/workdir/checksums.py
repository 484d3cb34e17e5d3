"""A checksum of each array, to detect damage on the way to disk and back.

The storage compresses without checksums: most flipped bits of a file would come
back as other parameters and no error. Integer sums do not depend on their
order, so a checksum is the same on all devices and meshes.
"""

import hashlib
import json
import math

import jax
import jax.numpy as jnp

from transformer_xl import shapes


def by_path(tree: shapes.PyTree) -> dict[str, shapes.PyTree]:
  """The leaves of a tree by their paths, such as `params/softmax/bias`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in leaves
  }


def of(tree: shapes.PyTree) -> dict[str, str]:
  """The checksum of each array, such as `float32 00c0ffee`, by its path.

  All processes must call it together, and all get the same result.
  """
  leaves = by_path(tree)
  numbers = jax.device_get(_numbers(leaves))
  return {
    name: f"{leaf.dtype} {numbers[name]:08x}" for name, leaf in leaves.items()
  }


def differ(tree: shapes.PyTree, saved: dict[str, str]) -> list[str]:
  """Names of arrays whose checksums are not the saved ones.

  Arrays that were restored as another type cannot be compared; they are left
  out, as are those that are only in the tree or only in the checkpoint.
  """
  if not saved:  # An import has none, and many parameters.
    return []
  now = of(tree)
  return [
    name
    for name in sorted(saved.keys() & now.keys())
    if saved[name] != now[name]
    and saved[name].split()[0] == now[name].split()[0]
  ]


def of_json(value: object) -> str:
  """SHA-256 of a JSON value; the order of names does not matter."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@jax.jit
def _numbers(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return {name: _number(leaf) for name, leaf in leaves.items()}


def _number(array: jax.Array) -> jax.Array:
  """The sum of (2 i + 1) bits_i modulo 2^32, over elements i.

  The factors are odd, so a change of one element's bits always changes the sum.
  They differ from element to element, so an exchange of elements shows, too.
  """
  if array.dtype == jnp.bool_:
    array = array.astype(jnp.uint8)
  kinds = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
  kind = kinds[array.dtype.itemsize]
  bits = jax.lax.bitcast_convert_type(array, kind).astype(jnp.uint32)
  index = jnp.zeros(array.shape, jnp.uint32)
  for axis in range(array.ndim):  # A reshape would move shards.
    stride = math.prod(array.shape[axis + 1 :]) % (1 << 32)
    place = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    index += place * jnp.uint32(stride)
  return jnp.sum(bits * (2 * index + 1), dtype=jnp.uint32)
