"""Long short-term memory, one of the networks that the paper compares with.

It stands in the place of attention. A layer remembers an output and a cell, of
any age (Hochreiter and Schmidhuber 1997; docs/specification.md, section 25).
Parameters are those of Flax's cell. The product with the inputs does not wait
for other tokens, so it is one for the whole segment; so is the gradient of the
matrices that multiply outputs, which autodiff would add up token by token.

Shapes: B lanes, T tokens, D model width, G = 4 D for the gates side by side.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import recurrent

# As Flax names them: input, forget, cell and output.
_GATES = "ifgo"


class CellState(NamedTuple):
  """The state of an LSTM after the tokens before, in float32.

  Attributes:
    cell: c_t of each lane.
    output: h_t of each lane.
  """

  cell: jt.Float[jax.Array, "*T B D"]
  output: jt.Float[jax.Array, "*T B D"]


@registry.mixers.register("lstm")
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
    # Never run: it gives the names and initial values of the parameters.
    flax_cell = nn.OptimizedLSTMCell(config.model_dim, parent=None)

    def init_cell(key: jax.Array) -> shapes.PyTree:
      row = jnp.zeros((1, config.model_dim))
      drawn = flax_cell.init(key, (row, row), row)["params"]
      return jax.tree.map(
        lambda leaf: parameters.boxed(
          leaf, "inputs" if leaf.ndim == 2 else "whole"
        ),
        drawn,
      )

    params = self.param("cell", init_cell)
    from_inputs = _kernel_of(params, "i").astype(config.dtype)
    from_outputs = _kernel_of(params, "h")
    drop = dropout_lib.Dropout(config.weight_dropout_rate)
    from_outputs = drop(from_outputs, dropout_lanes=shared.dropout_lanes)
    from_outputs = from_outputs.astype(config.dtype)
    biases = [params[f"h{gate}"]["bias"] for gate in _GATES]
    bias = jnp.concatenate(biases).astype(config.dtype)

    gates = dense.times(norm(hidden), from_inputs) + bias[None, None]
    output, cell = jnp.unstack(self.starting_vectors(state), axis=1)
    read = read_tokens(
      jnp.swapaxes(gates, 0, 1),
      from_outputs,
      CellState(cell=cell, output=output),
      shared.resets.T,
    )
    cells = jnp.swapaxes(read.cell, 0, 1)
    outputs = jnp.swapaxes(read.output, 0, 1)

    vectors = jnp.stack([outputs, cells], axis=2)
    carry = recurrent.last_carry(vectors, state, shared)
    dropout = dropout_lib.of_states(config)
    mixed = dropout(
      outputs.astype(hidden.dtype), dropout_lanes=shared.dropout_lanes
    )
    return mixed, mixer.Kept(carry)

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of the four gates' matrices, from input and output."""
    del reading
    return 2.0 * 8 * config.model_dim**2


def _kernel_of(params: shapes.PyTree, source: str) -> jax.Array:
  """The matrices of all gates side by side: of inputs "i", of outputs "h"."""
  kernels = [params[f"{source}{gate}"]["kernel"] for gate in _GATES]
  return jnp.concatenate(kernels, axis=1)


@jax.custom_vjp
def read_tokens(
  gates: jt.Float[jax.Array, "T B G"],
  kernel: jt.Float[jax.Array, "D G"],
  start: CellState,
  resets: jt.Bool[jax.Array, "T B"],
) -> CellState:
  """Reads one token of every lane after the other.

  Args:
    gates: what inputs and biases add to the gates.
    kernel: from an output to the gates of the next token.
    start: what is known before the first token.
    resets: tokens that know nothing of those before.

  Returns:
    What is known after each token.
  """

  def read(
    carry: CellState, column: tuple[jax.Array, jax.Array]
  ) -> tuple[CellState, CellState]:
    own_gates, reset = column
    carry = _reset(carry, where=reset)
    product = carry.output.astype(kernel.dtype) @ kernel
    carry = _next(own_gates + product, carry.cell)
    return carry, carry

  _, after = jax.lax.scan(read, start, (gates, resets))
  return after


def _next(gates: jax.Array, cell: jax.Array) -> CellState:
  """The cell and the output of a token, from its gates and the last cell."""
  input_gate, forget, candidate, output = jnp.split(gates, 4, axis=-1)
  kept = nn.sigmoid(forget) * cell
  cell = kept + nn.sigmoid(input_gate) * jnp.tanh(candidate)
  return CellState(cell, nn.sigmoid(output) * jnp.tanh(cell))


def _reset(state: CellState, *, where: jax.Array) -> CellState:
  """The state with zeros in the lanes where a document starts."""
  return jax.tree.map(lambda x: jnp.where(where[..., None], 0, x), state)


# What the backward pass of `read_tokens` needs: arguments and result.
_Saved = tuple[jax.Array, jax.Array, CellState, jax.Array, CellState]


def _forward(
  gates: jax.Array, kernel: jax.Array, start: CellState, resets: jax.Array
) -> tuple[CellState, _Saved]:
  after = read_tokens(gates, kernel, start, resets)
  return after, (gates, kernel, start, resets, after)


def _backward(
  saved: _Saved, gradients: CellState
) -> tuple[jax.Array, jax.Array, CellState, None]:
  """Gradients of the gates, the kernel and the start, by those of `after`."""
  gates, kernel, start, resets, after = saved
  before = jax.tree.map(
    lambda first, rest: jnp.concatenate([first[None], rest[:-1]]), start, after
  )
  before = _reset(before, where=resets)
  outputs = before.output.astype(kernel.dtype)
  products, pull_products = jax.vjp(dense.times, outputs, kernel)

  def read_back(
    carry: CellState, column: tuple[jax.Array, jax.Array, jax.Array, CellState]
  ) -> tuple[CellState, jax.Array]:
    """Gradients before a token, by those after it."""
    own_gates, cell, reset, own = column
    _, pull = jax.vjp(_next, own_gates, cell)
    of_gates, of_cell = pull(jax.tree.map(jnp.add, carry, own))
    of_output = (of_gates @ kernel.T).astype(cell.dtype)
    return _reset(CellState(of_cell, of_output), where=reset), of_gates

  of_start, of_gates = jax.lax.scan(
    read_back,
    jax.tree.map(jnp.zeros_like, start),
    (gates + products, before.cell, resets, gradients),
    reverse=True,
  )
  _, of_kernel = pull_products(of_gates)
  return of_gates, of_kernel, of_start, None


read_tokens.defvjp(_forward, _backward)
