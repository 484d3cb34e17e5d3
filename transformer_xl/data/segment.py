"""One segment of all lanes, as the loader emits it."""

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema

Array = TypeVar("Array", bound=np.ndarray | jax.Array)


class Segment(NamedTuple, Generic[Array]):
  """Tokens and their targets; NumPy from a stream, JAX on the devices.

  The arrays are [B, T], or [S, B, T] for S consecutive segments. With context
  that is read again, inputs are longer: only the last U have targets.
  """

  inputs: jt.Int[Array, "*S B T"]
  targets: jt.Int[Array, "*S B U"]  # The model never shifts labels.
  resets: jt.Bool[Array, "*S B T"]  # True at the first token of a document.
  # 0 where a target does not count; None where all of them count.
  weights: jt.Float[Array, "*S B U"] | None = None

  def loss_weights(self) -> jt.Float[jax.Array, "*S B U"]:
    """The weights, made on the device where none were shipped."""
    if self.weights is None:
      return jnp.ones(self.targets.shape, jnp.float32)
    return jnp.asarray(self.weights)


def abstract_segments(
  mesh: jax.sharding.Mesh,
  count: int,
  group: schema.TrainConfig | schema.EvalConfig,
  segment_len: int,
  *,
  parts: int = 1,
  has_weights: bool,
) -> Segment[shapes.PyTree]:
  """Shapes and shardings of the segments that `streams.device_segments` makes.

  Args:
    mesh: the devices.
    count: the number of segments, S.
    group: `config.train` or `config.eval`.
    segment_len: T.
    parts: parts of the lanes that accumulation reads one after the other.
    has_weights: whether some targets do not count.
  """
  read_len = group.context_len + segment_len
  sharding = mesh_lib.segments(mesh)
  lanes = mesh_lib.padded_lanes(mesh, group.batch_size, parts=parts)
  lengths = [(read_len, np.int32), (segment_len, np.int32), (read_len, np.bool)]
  if has_weights or lanes > group.batch_size:
    lengths.append((segment_len, np.float32))
  fields: list[shapes.PyTree] = [
    jax.ShapeDtypeStruct((count, lanes, length), dtype, sharding=sharding)
    for length, dtype in lengths
  ]
  return Segment(*fields)


def with_empty_lanes(
  found: Segment[np.ndarray], num_lanes: int
) -> Segment[np.ndarray]:
  """A segment [S, B, T] with `num_lanes` lanes, the last ones without weight.

  Their tokens and targets are 0, which every vocabulary has.
  """
  if found.weights is None:
    ones = np.ones(found.targets.shape, np.float32)
    found = found._replace(weights=ones)
  missing = num_lanes - found.inputs.shape[1]
  return jax.tree.map(
    lambda array: np.pad(array, ((0, 0), (0, missing), (0, 0))), found
  )
