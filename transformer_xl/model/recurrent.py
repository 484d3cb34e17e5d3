"""Recurrent networks, which the paper compares with: LSTM and QRNN.

They remember one state, not the tokens before a segment:

    outputs, state = model.apply({"params": params}, inputs, state, resets)

Equations and sources: docs/specification.md, section 25.

Shapes: B lanes, T tokens, D model width, S vectors that a layer remembers.
"""

from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import layers
from transformer_xl.model import network
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense


class State(NamedTuple):
  """What one segment hands to the next, in float32.

  S is 0 if nothing is carried from segment to segment.
  """

  layers: tuple[jt.Float[shapes.Array, "B S D"], ...]

  @property
  def num_lanes(self) -> int:
    """B."""
    return self.layers[0].shape[0]

  @property
  def is_empty(self) -> bool:
    """Whether there is nothing to store, because nothing is carried."""
    return not any(layer.size for layer in self.layers)

  @property
  def arrays(self) -> dict[str, Any]:
    """The fields, for a checkpoint."""
    return self._asdict()

  @property
  def sizes(self) -> list[list[int]]:
    """B, S and D of each layer, for a checkpoint's metadata."""
    return [list(layer.shape) for layer in self.layers]

  def partition_specs(self) -> "State":
    """How a mesh splits it: by lanes."""
    return jax.tree.map(lambda _: P(mesh_lib.LANES), self)

  def repeat_lane(self, count: int) -> "State":
    """The state of a single lane, in `count` lanes."""
    return jax.tree.map(lambda layer: jnp.repeat(layer, count, axis=0), self)


class LSTM(nn.Module):
  """One layer of Flax's LSTM cells; S is 2, output and cell.

  Dropout of weights is that of the recurrent matrices, with one mask for a
  segment (Merity et al. 2017, section 2).
  """

  config: schema.ModelConfig
  is_first: bool  # Of the network.

  @property
  def num_vectors(self) -> int:
    """S."""
    return 2

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    start: jt.Float[shapes.Array, "B S D"],
    resets: shapes.Resets,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Hidden, jt.Float[shapes.Array, "B T S D"]]:
    """Reads a segment; returns the outputs, and the state after each token."""
    config = self.config
    cell = nn.OptimizedLSTMCell(
      config.model_dim, dtype=config.dtype, parent=None
    )

    def init(key):
      row = jnp.zeros((1, config.model_dim))
      return cell.init(key, (row, row), row)["params"]

    drop = dropout_lib.Dropout(config.weight_dropout_rate)
    params = dict(self.param("cell", init))
    for name in ("hi", "hf", "hg", "ho"):
      kernel = drop(params[name]["kernel"], dropout_lanes=dropout_lanes)
      params[name] = {**params[name], "kernel": kernel}

    def read(carry, column):
      inputs, reset = column
      carry = jax.tree.map(lambda x: jnp.where(reset[:, None], 0, x), carry)
      carry, _ = cell.apply({"params": params}, carry, inputs)
      return carry, carry

    columns = jnp.swapaxes(hidden, 0, 1), resets.T
    _, states = jax.lax.scan(read, (start[:, 1], start[:, 0]), columns)
    cells, outputs = (jnp.swapaxes(array, 0, 1) for array in states)
    return outputs.astype(hidden.dtype), jnp.stack([outputs, cells], axis=2)


class QRNN(nn.Module):
  """One layer of a quasi-recurrent network with fo-pooling.

  The first layer looks at two tokens at a time, the others at one (Merity et
  al. 2018). S is as many: the cell, and the first layer's last input. The cells
  of a segment are one associative scan over its tokens.
  """

  config: schema.ModelConfig
  is_first: bool  # Of the network.

  @property
  def num_vectors(self) -> int:
    """S."""
    return 2 if self.is_first else 1

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    start: jt.Float[shapes.Array, "B S D"],
    resets: shapes.Resets,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Hidden, jt.Float[shapes.Array, "B T S D"]]:
    """Reads a segment; returns the outputs, and the state after each token."""
    config, rows = self.config, hidden
    if self.is_first:
      last = start[:, 1:].astype(hidden.dtype)
      before = jnp.concatenate([last, hidden[:, :-1]], axis=1)
      before = jnp.where(resets[:, :, None], 0, before)
      rows = jnp.concatenate([before, hidden], axis=2)
    shape = rows.shape[2], 3 * config.model_dim
    init = nn.initializers.lecun_normal()
    kernel = self.param("kernel", init, shape, jnp.float32)
    drop = dropout_lib.Dropout(config.weight_dropout_rate)
    kernel = drop(kernel.astype(config.dtype), dropout_lanes=dropout_lanes)
    gates = dense.times(rows, kernel)
    gates = gates + parameters.vector(self, "bias", shape[1])[None, None]
    new, forget, output = jnp.split(gates.astype(jnp.float32), 3, axis=2)
    forget = nn.sigmoid(forget)
    # c_t = f_t c_(t-1) + (1 - f_t) z_t; after a reset c_(t-1) counts as 0.
    kept, added = jax.lax.associative_scan(
      _compose,
      (
        jnp.where(resets[:, :, None], 0.0, forget),
        (1 - forget) * jnp.tanh(new),
      ),
      axis=1,
    )
    cells = kept * start[:, :1] + added
    outputs = (nn.sigmoid(output) * cells).astype(hidden.dtype)
    vectors = (cells, hidden.astype(jnp.float32))[: self.num_vectors]
    return outputs, jnp.stack(vectors, axis=2)


def _compose(first, second):
  """The map c -> k c + a that does the first and then the second."""
  (kept, added), (later_kept, later_added) = first, second
  return later_kept * kept, later_kept * added + later_added


_LAYERS = {"lstm": LSTM, "qrnn": QRNN}


def _layers(config: schema.ModelConfig) -> list[Any]:
  """The modules of the layers, lowest first."""
  layer = _LAYERS[config.kind]
  return [layer(config, index == 0) for index in range(config.num_layers)]


class Recurrent(network.Network):
  """Layers of cells with dropout between them."""

  def setup(self) -> None:
    """Names the submodules."""
    super().setup()
    self.layers = _layers(self.config)
    self.layer_dropout = layers.state_dropout(self.config)

  def _read(self, inputs, memory, resets, dropout_lanes, count=None):
    """`__call__` without the last dropout, and the outputs of all layers.

    The next state is that after the first `count` tokens, a scalar, or all.
    """
    if resets is None:
      resets = jnp.zeros(inputs.shape, bool)
    if not self.gradient_through_memory:
      memory = jax.lax.stop_gradient(memory)
    last = inputs.shape[1] - 1 if count is None else count - 1
    hidden = self.words(inputs, dropout_lanes=dropout_lanes)
    hidden = self.input_dropout(hidden, dropout_lanes=dropout_lanes)
    outputs: list[shapes.Hidden] = [hidden]
    states: list[jax.Array] = []
    for layer, start in zip(self.layers, memory.layers, strict=True):
      if states:
        hidden = self.layer_dropout(hidden, dropout_lanes=dropout_lanes)
      carried = start.shape[1]
      missing = layer.num_vectors - carried
      start = jnp.pad(start, ((0, 0), (0, missing), (0, 0)))
      hidden, vectors = layer(hidden, start, resets, dropout_lanes)
      state = jax.lax.dynamic_index_in_dim(vectors, last, 1, keepdims=False)
      states.append(state[:, :carried])
      outputs.append(hidden)
    return hidden, State(tuple(states)), tuple(outputs)


def empty(
  config: schema.ModelConfig,
  *,
  batch_size: int,
  mem_len: int,
  compressed_len: int = 0,
) -> State:
  """The state before the first token; with a `mem_len` of 0 none is carried."""
  del compressed_len
  carried = min(mem_len, 1)
  sizes = [carried * layer.num_vectors for layer in _layers(config)]
  return State(
    tuple(jnp.zeros((batch_size, size, config.model_dim)) for size in sizes)
  )


def layer_flops(config: schema.ModelConfig, **lengths: int) -> float:
  """Operations of all layers for a token: those of their matrices.

  An LSTM has 8 D^2 entries a layer, a QRNN 3 D^2, and as many again in its
  first layer, for the token before.
  """
  del lengths
  blocks = 8 * config.num_layers
  if config.kind == "qrnn":
    blocks = 3 * (config.num_layers + 1)
  return 2.0 * blocks * config.model_dim**2
