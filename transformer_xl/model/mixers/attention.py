"""Attention to the hidden states of earlier segments (Dai et al. 2019).

The mixer of Transformer-XL. A layer remembers its own inputs; queries are made
of the segment, keys and values of memory and segment (paper, section 3.2). How
distances enter the scores is up to the encoding (section 3.3).

Shapes: B lanes, T queries, M memory length, K = M + T keys, H heads, Dh head
width, D model width.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model import ring
from transformer_xl.model import scores
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.mixers import mixer


class Memory(NamedTuple):
  """The inputs of one layer for the last M tokens, newest last.

  How many of them a lane may see is the length that all layers share, so a lane
  forgets by setting a number.
  """

  hiddens: shapes.LayerMemory

  @property
  def num_positions(self) -> int:
    """The length of the memory, M."""
    return self.hiddens.shape[-2]


@registry.mixers.register("attention")
class Attention(mixer.Mixer):
  """Attention to memory and segment."""

  attends = True
  takes_limit = True
  streaming = ring.Streaming

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """M vectors of zeros, which are masked or attended to.

    With `memory_start="masked"` queries do not see them, as in the original
    PyTorch code, which starts without any state. With "zeros" queries attend to
    them, as in the TensorFlow and HuggingFace code (docs/specification.md,
    section 7).
    """
    del step_len
    shape = (batch_size, mem_len, config.model_dim)
    return Memory(jnp.zeros(shape, config.dtype))

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Attends from the segment to what the layer remembers and to itself."""
    config = self.config
    mem_len = state.hiddens.shape[1]
    memory = state.hiddens
    num_visible = jnp.minimum(shared.length, mem_len)
    if config.memory_start == "zeros":
      num_visible = jnp.full_like(shared.length, mem_len)
      if shared.forgets is not None:
        memory = jnp.where(shared.forgets[:, None, None], 0, memory)
    reach = self.reach(shared, num_visible, mem_len)
    output, inspected = attend(
      self, norm(memory), norm(hidden), reach=reach, shared=shared
    )

    held = jnp.concatenate([memory, hidden], axis=1)
    remembered = shared.newest(held, mem_len)
    return output, mixer.Kept(
      Memory(remembered),
      inspected=inspected,
    )

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """The projections, and the products over the keys that a token sees."""
    return attention_flops(config, num_keys=reading.visible_keys(config).mean())


def attention_flops(config: schema.ModelConfig, *, num_keys: float) -> float:
  """Useful operations of attention for a token that sees `num_keys` keys.

  With G heads of keys and values, the projections are 4 D (H + G) Dh, and the
  encoding's p products of attention 2 p H Dh k for k keys. Not counted are
  masked keys, and projecting memory and distances again for every segment.
  """
  width = config.num_heads * config.head_dim
  num_heads = config.num_heads + config.num_kv_heads
  projections = 4 * config.model_dim * num_heads * config.head_dim
  products = encodings.of(config).score_products
  return projections + 2 * products * width * num_keys


def attend(
  module: mixer.Mixer,
  memory: shapes.LayerMemory,
  segment: shapes.Hidden,
  *,
  reach: shapes.Reach,
  shared: mixer.Shared,
) -> tuple[shapes.Hidden, scores.ScoreFactors | None]:
  """Attends from the rows of a segment to those of memory and segment.

  Names the parameters of attention in `module`. Returns what is added to the
  residual stream, and the factors of the scores if they are to be inspected.
  """
  config = module.config
  encoding = encodings.of(config)
  mem_len = memory.shape[1]
  num_keys = mem_len + segment.shape[1]
  dropout = dropout_lib.of_attention(module, shared.dropout_lanes)
  biases = shared.biases or encoding.layer_biases(module)
  distances = shared.distances
  if distances is not None:  # The smallest distances are last.
    distances = distances[distances.shape[0] - num_keys :]

  # Memory is constant unless gradients pass into it. The norm of a pre-norm
  # model, however, is trained by its rows as well.
  is_constant = not module.settings.trains_memory and not config.pre_norm
  num_constant = mem_len if is_constant else 0
  project = parameters.Projections(module, dropout_lanes=shared.dropout_lanes)
  rows = jnp.concatenate([memory, segment], axis=1)
  query = project("query", segment)
  key = project("key", rows, num_constant=num_constant)
  value = project("value", rows, num_constant=num_constant)
  query = parameters.normalised_heads(module, "query", query)
  key = parameters.normalised_heads(module, "key", key)
  terms = encoding.distance_terms(module, project, distances, num_keys, biases)

  positions = jnp.arange(num_keys, dtype=jnp.int32)[None, :, None, None]
  factors = scores.ScoreFactors(
    encoding.placed(config, query, positions[:, mem_len:]),
    encoding.placed(config, key, positions),
    reach,
    terms,
  )
  values = dispatch.relative_attention(
    factors, value, dropout=dropout, implementation=config.attention
  )
  output = parameters.project_output(
    module, values, dropout_lanes=shared.dropout_lanes
  )
  return output, factors if module.settings.inspects else None
