"""Attention to the layer's own outputs of earlier segments.

The enhanced recurrence mechanism of ERNIE-Doc (Ding et al. 2020), also known as
`shift_mem_down`. A layer of Transformer-XL remembers its inputs, so information
rises by one layer from segment to segment and reaches as many segments as there
are layers. With its outputs in their place it stays in its layer, and there is
no limit (docs/specification.md, section 30).

Shapes: B lanes, T tokens, M memory length, D model width.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import mixer


class Memory(NamedTuple):
  """Inputs and outputs of one layer for the last M tokens, newest last.

  Attributes:
    hiddens: its inputs, which the tokens of the same segment attend to where a
      segment is read in parts.
    outputs: its outputs, which later segments attend to.
  """

  hiddens: shapes.LayerMemory
  outputs: shapes.LayerMemory

  @property
  def num_positions(self) -> int:
    """The length of the memory, M."""
    return self.hiddens.shape[-2]


@registry.mixers.register("same_layer")
class SameLayer(mixer.Mixer):
  """Attention to the segment's inputs and to earlier outputs."""

  attends = True
  takes_limit = True
  attends_zeros = False
  writes_segments = True
  has_limit = False

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """Zeros, which no query sees."""
    del step_len
    shape = (batch_size, mem_len, config.model_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Memory(zeros, zeros)

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Attends from the segment to what the layer remembers and to itself."""
    mem_len = state.hiddens.shape[1]
    reach = self.reach(shared, jnp.minimum(shared.length, mem_len), mem_len)
    memory = state.outputs
    if shared.first_position is not None:
      # The segment's earlier parts are attended to as the whole segment is.
      age = jnp.arange(mem_len, 0, -1, dtype=jnp.int32)
      is_new = (age <= shared.first_position)[None, :, None]
      memory = jnp.where(is_new, state.hiddens, state.outputs)
    output, inspected = attention.attend(
      self, norm(memory), norm(hidden), reach=reach, shared=shared
    )
    held = jnp.concatenate([state.hiddens, hidden], axis=1)
    remembered = shared.newest(held, mem_len)
    return output, mixer.Kept(
      Memory(remembered, state.outputs),
      inspected=inspected,
    )

  @staticmethod
  def with_output(
    state: Memory, output: shapes.Hidden, shared: mixer.Shared
  ) -> Memory:
    """Remembers the outputs of the segment."""
    held = jnp.concatenate([state.outputs, output], axis=1)
    return state._replace(outputs=shared.newest(held, state.num_positions))

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of attention; there are as many outputs as inputs."""
    return attention.Attention.flops(config, reading)
