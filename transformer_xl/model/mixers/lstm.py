"""Long short-term memory, one of the networks that the paper compares with.

Flax's LSTM cells in the place of attention. A layer remembers an output and a
cell, of any age (Hochreiter and Schmidhuber 1997; docs/specification.md,
section 25).

Shapes: B lanes, T tokens, D model width.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.mixers import mixer


class Carry(NamedTuple):
  """Vectors that a recurrent layer hands on, in float32.

  V is 0 if nothing is carried from segment to segment.
  """

  vectors: jt.Float[shapes.Array, "B V D"]


class LSTM(mixer.Mixer):
  """Cells of an LSTM; the vectors of the state are output and cell.

  Dropout of weights is that of the recurrent matrices, with one mask for a
  segment (Merity et al. 2017, section 2).
  """

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
    return empty_carry(config, batch_size, num_vectors=2 if mem_len else 0)

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Carry,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Reads the segment token by token."""
    config = self.config
    cell = nn.OptimizedLSTMCell(
      config.model_dim, dtype=config.dtype, parent=None
    )

    def init_cell(key: jax.Array) -> shapes.PyTree:
      row = jnp.zeros((1, config.model_dim))
      return cell.init(key, (row, row), row)["params"]

    params = dict(self.param("cell", init_cell))
    drop = dropout_lib.Dropout(config.weight_dropout_rate)
    for name in ("hi", "hf", "hg", "ho"):
      kernel = params[name]["kernel"]
      kernel = drop(kernel, dropout_lanes=shared.dropout_lanes)
      params[name] = {**params[name], "kernel": kernel}

    def read(
      carry: tuple[jax.Array, jax.Array],
      column: tuple[jax.Array, jax.Array],
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
      """Reads one token of every lane; a carry is a cell and an output."""
      inputs, reset = column
      carry = jax.tree.map(lambda x: jnp.where(reset[:, None], 0, x), carry)
      carry, _ = cell.apply({"params": params}, carry, inputs)
      return carry, carry

    start = starting_vectors(state, num_vectors=2)
    first_carry = (start[:, 1], start[:, 0])
    columns = (jnp.swapaxes(norm(hidden), 0, 1), shared.resets.T)
    _, (cells, outputs) = jax.lax.scan(read, first_carry, columns)
    cells = jnp.swapaxes(cells, 0, 1)
    outputs = jnp.swapaxes(outputs, 0, 1)

    vectors = jnp.stack([outputs, cells], axis=2)
    carry = last_carry(vectors, state, shared)
    dropout = dropout_lib.of_states(config)
    mixed = dropout(
      outputs.astype(hidden.dtype), dropout_lanes=shared.dropout_lanes
    )
    return mixed, mixer.Kept(carry)

  @staticmethod
  def remembered_tokens(config: schema.ModelConfig, mem_len: int) -> int | None:
    """No limit, unless nothing is carried from segment to segment."""
    del config
    return None if mem_len else 0

  @staticmethod
  def flops(
    config: schema.ModelConfig,
    *,
    segment_len: int,
    mem_len: int,
    context_len: int,
  ) -> float:
    """Operations of the four gates' matrices, from input and output."""
    del segment_len, mem_len, context_len
    return 2.0 * 8 * config.model_dim**2


def empty_carry(
  config: schema.ModelConfig, batch_size: int, *, num_vectors: int
) -> Carry:
  """The state of a recurrent layer before the first token."""
  return Carry(jnp.zeros((batch_size, num_vectors, config.model_dim)))


def starting_vectors(
  state: Carry, *, num_vectors: int
) -> jt.Float[shapes.Array, "B V D"]:
  """The vectors that a segment starts from; zeros if none are carried."""
  missing = num_vectors - state.vectors.shape[1]
  return jnp.pad(state.vectors, ((0, 0), (0, missing), (0, 0)))


def last_carry(
  vectors: jt.Float[shapes.Array, "B T V D"],
  state: Carry,
  shared: mixer.Shared,
) -> Carry:
  """The vectors after the last token that counts, to carry on.

  `vectors` has those after each token of the segment. The result has as many
  of them as `state` does.
  """
  num_tokens = shared.num_tokens
  last = (vectors.shape[1] if num_tokens is None else num_tokens) - 1
  chosen = jax.lax.dynamic_index_in_dim(vectors, last, 1, keepdims=False)
  return Carry(chosen[:, : state.vectors.shape[1]].astype(jnp.float32))
