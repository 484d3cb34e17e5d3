"""What a reader holds: prepared parameters, and what it has read.

Shapes: B lanes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.model import memory_tokens as memory_tokens_lib
from transformer_xl.model.mixers import mixer as mixer_lib


class Frozen(NamedTuple):
  """Parameters, and arrays that are computed from the parameters alone.

  Attributes:
    outside: parameters that belong to no layer.
    layers: one tree for each layer, since a slice of one tree costs a copy.
  """

  outside: shapes.PyTree
  layers: tuple[shapes.PyTree, ...]


class ReaderState(NamedTuple):
  """Everything that a step needs to know of the tokens before it.

  Attributes:
    layers: what each layer remembers.
    length: tokens of its document that each lane has read.
    position: position of the next token in its segment.
    num_read: tokens that were read in all; it may overflow.
    memory_tokens: those in front of the segment, which are read behind it, too;
      None if the model has none. They count as tokens in all the rest.
  """

  layers: tuple[mixer_lib.LayerState, ...]
  length: jt.Int[shapes.Array, "B"]
  position: jt.Int[shapes.Array, ""]
  num_read: jt.Int[shapes.Array, ""]
  memory_tokens: memory_tokens_lib.Vectors | None = None

  @property
  def num_lanes(self) -> int:
    """The number of lanes, B."""
    return self.length.shape[0]

  def repeat_lane(self, count: int) -> "ReaderState":
    """The state of a single lane, in `count` lanes."""

    def repeated(state: mixer_lib.LayerState) -> mixer_lib.LayerState:
      if hasattr(state, "repeat_lane"):
        return state.repeat_lane(count)
      return jax.tree.map(
        lambda leaf: jnp.repeat(leaf, count, axis=0) if leaf.ndim else leaf,
        state,
      )

    layers = tuple(map(repeated, self.layers))
    length, vectors = jax.tree.map(
      lambda leaf: jnp.repeat(leaf, count, axis=0),
      (self.length, self.memory_tokens),
    )
    return self._replace(layers=layers, length=length, memory_tokens=vectors)

  def partition_specs(self) -> "ReaderState":
    """The state's PartitionSpecs: by lanes, and for rings by heads as well."""

    def specs(state: mixer_lib.LayerState) -> mixer_lib.LayerState:
      if hasattr(state, "partition_specs"):
        return state.partition_specs()
      return jax.tree.map(
        lambda leaf: P(mesh_lib.LANES) if leaf.ndim else P(), state
      )

    layers = tuple(map(specs, self.layers))
    by_lanes = mesh_lib.spec(mesh_lib.LANES)
    whole = mesh_lib.spec()
    return ReaderState(
      layers,
      length=by_lanes,
      position=whole,
      num_read=whole,
      memory_tokens=None if self.memory_tokens is None else by_lanes,
    )


def does_not_fit(num_vectors: int) -> errors.UserError:
  """The error of a step that goes on behind the end of a ring or a segment."""
  return errors.UserError(
    f"a step of {num_vectors} vectors does not fit behind those before it: "
    "read whole segments, then at most one shorter step, then single "
    "vectors (for_tokens)."
  )
