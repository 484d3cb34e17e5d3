"""Calls a function on a mesh of the devices, with the products of a format."""

import contextlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes

Arrays = dict[str, np.ndarray]
DTYPES = ("float32", "bfloat16")


@contextlib.contextmanager
def exact_products(dtype: str) -> Iterator[None]:
  """Multiplies float32 exactly; bfloat16 has no other product than its own."""
  precision = "highest" if dtype == "float32" else None
  with jax.default_matmul_precision(precision):
    yield


def call(
  mesh: jax.sharding.Mesh,
  function: Callable[..., dict[str, jax.Array]],
  rows: Arrays,
  others: shapes.PyTree,
) -> Arrays:
  """Calls a function on a mesh, with `rows` split by lanes, others whole.

  The results are whole on every device, so that each process reads them.
  """
  whole = mesh_lib.replicated(mesh)
  rows_at = jax.device_put(rows, mesh_lib.lanes(mesh))
  others_at = jax.device_put(others, whole)
  found = jax.jit(function, out_shardings=whole)(rows_at, others_at)
  return {name: np.asarray(array) for name, array in found.items()}


def describe(mesh: jax.sharding.Mesh) -> str:
  """The axes of a mesh that split anything."""
  axes = [f"{name} {size}" for name, size in mesh.shape.items() if size > 1]
  return f"mesh of {', '.join(axes)}" if axes else "one device"
