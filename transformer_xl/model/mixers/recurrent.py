"""The base of recurrent mixers: a layer that hands on vectors, however old.

Shapes: B lanes, T tokens, V vectors that are handed on, D model width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model.mixers import mixer

# The LSTM hands on its output and its cell, the QRNN its cell and last input.
NUM_VECTORS = 2


class Carry(NamedTuple):
  """Vectors that a recurrent layer hands on, in float32.

  V is 0 if nothing is carried from segment to segment.
  """

  vectors: jt.Float[shapes.Array, "B V D"]


class Recurrent(mixer.Mixer):
  """A mixer whose state is `NUM_VECTORS` vectors."""

  has_limit = False

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Carry:
    """Zeros; the vectors are carried on whenever `mem_len` is above 0."""
    del step_len
    num_vectors = NUM_VECTORS if mem_len else 0
    return Carry(jnp.zeros((batch_size, num_vectors, config.model_dim)))

  def starting_vectors(self, state: Carry) -> jt.Float[shapes.Array, "B V D"]:
    """The vectors that a segment starts from; zeros if none are carried."""
    return mixer.zeros_if_absent(state.vectors, NUM_VECTORS)


def last_carry(
  vectors: jt.Float[shapes.Array, "B T V D"],
  state: Carry,
  shared: mixer.Shared,
) -> Carry:
  """The vectors after the last token that counts, to carry on.

  `vectors` has those after each token of the segment. The result has as many
  of them as `state` does.
  """
  last = shared.num_counted(vectors.shape[1]) - 1
  chosen = jax.lax.dynamic_index_in_dim(vectors, last, 1, keepdims=False)
  return Carry(chosen[:, : state.vectors.shape[1]].astype(jnp.float32))
