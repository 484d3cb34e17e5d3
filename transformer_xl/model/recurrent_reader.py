"""A recurrent network with fixed parameters; `kv_cache` has Transformer-XL."""

import dataclasses
from typing import Any

import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import recurrent


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads tokens with fixed parameters, as `kv_cache.Reader` does.

  Nothing is prepared, and a step may have any number of tokens: the settings of
  attention and of the ring count for nothing.
  """

  config: schema.ModelConfig
  mem_len: int  # 1, or 0 to carry nothing from step to step.
  segment_len: int  # Tokens of a full segment.
  clamp_len: int
  same_length: bool
  max_step_len: int = 0
  compressed_len: int = 0
  temperature: float = 1.0  # Divides the logits.
  layout: None = None  # Of compressed slots.
  layer_slots: tuple[()] = ()  # It has no rings.

  def __post_init__(self):
    # A longer memory is the same; results state what there is.
    object.__setattr__(self, "mem_len", min(self.mem_len, 1))

  def for_tokens(
    self, frozen: shapes.PyTree, state: recurrent.State
  ) -> tuple["Reader", shapes.PyTree, recurrent.State]:
    """Continues with single tokens."""
    return self, frozen, state

  def freeze(self, params: shapes.PyTree) -> shapes.PyTree:
    """The parameters."""
    return params

  def start(self, frozen: shapes.PyTree, *, batch_size: int) -> recurrent.State:
    """The state before the first token."""
    del frozen
    return recurrent.empty(
      self.config, batch_size=batch_size, mem_len=self.mem_len
    )

  def step(
    self,
    frozen: shapes.PyTree,
    state: recurrent.State,
    tokens: shapes.Tokens,
    resets: Any = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], recurrent.State]:
    """`Network.log_probs`."""
    return self._bound(frozen).log_probs(tokens, state, resets)

  def nll(
    self,
    frozen: shapes.PyTree,
    state: recurrent.State,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Losses, recurrent.State]:
    """`Network.nll`."""
    return self._bound(frozen).nll(inputs, targets, state, resets)

  def read(
    self,
    frozen: shapes.PyTree,
    state: recurrent.State,
    tokens: shapes.Tokens,
    resets: Any = None,
  ) -> tuple[shapes.Hidden, recurrent.State]:
    """The last layer's states, and the next state."""
    return self._bound(frozen)(tokens, state, resets)

  def read_part(
    self,
    frozen: shapes.PyTree,
    state: recurrent.State,
    tokens: shapes.Tokens,
    count: jt.Int[shapes.Array, ""],
  ) -> tuple[shapes.Hidden, recurrent.State]:
    """`read` for the first `count` tokens; the others are padding."""
    return self._bound(frozen)._read(tokens, state, None, None, count)[:2]

  def read_layers(
    self,
    frozen: shapes.PyTree,
    state: recurrent.State,
    tokens: shapes.Tokens,
  ) -> tuple[tuple[shapes.Hidden, ...], recurrent.State]:
    """`read` with the states of all layers, N + 1: first the embeddings."""
    _, state, outputs = self._bound(frozen)._read(tokens, state, None, None)
    return outputs, state

  def head(self, frozen: shapes.PyTree) -> adaptive_softmax.Projection:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""
    return self._bound(frozen).head()

  def _bound(self, params: shapes.PyTree) -> recurrent.Recurrent:
    """The network with its parameters."""
    model = recurrent.Recurrent(
      self.config, self.clamp_len, self.same_length, self.temperature
    )
    return model.bind({"params": params})
