"""Long short-term memory, one of the networks that the paper compares with.

Flax's LSTM cells in the place of attention. A layer remembers an output and a
cell, of any age (Hochreiter and Schmidhuber 1997; docs/specification.md,
section 25).

Shapes: B lanes, T tokens, D model width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import recurrent


class LSTM(recurrent.Recurrent):
  """Cells of an LSTM; the vectors of the state are output and cell.

  Dropout of weights is that of the recurrent matrices, with one mask for a
  segment (Merity et al. 2017, section 2).
  """

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: recurrent.Carry,
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

    start = self.starting_vectors(state)
    first_carry = (start[:, 1], start[:, 0])
    columns = (jnp.swapaxes(norm(hidden), 0, 1), shared.resets.T)
    _, (cells, outputs) = jax.lax.scan(read, first_carry, columns)
    cells = jnp.swapaxes(cells, 0, 1)
    outputs = jnp.swapaxes(outputs, 0, 1)

    vectors = jnp.stack([outputs, cells], axis=2)
    carry = recurrent.last_carry(vectors, state, shared)
    dropout = dropout_lib.of_states(config)
    mixed = dropout(
      outputs.astype(hidden.dtype), dropout_lanes=shared.dropout_lanes
    )
    return mixed, mixer.Kept(carry)

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
