"""Attention with recurrent vectors (Hutchins et al. 2022, sections 3.1 to 3.3).

Beside the memory of Transformer-XL a layer has S state vectors. Tokens attend
to them, and after a segment they attend to themselves and to its tokens, and
are replaced in part: the paper's variant `skip` with the fixed gate. The
vectors are written where the next segment starts, so that its loss trains how
they are written (docs/specification.md, section 28).

Shapes: B lanes, T tokens, M memory length, S state vectors, Q queries and R
rows that they attend to, H heads, Dh head width, D model width.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import norm as norm_lib
from transformer_xl.model import visibility
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import mixer

Vectors = jt.Float[shapes.Array, "B S D"]


class Memory(NamedTuple):
  """The state of one layer; without memory, M and S are 0.

  Attributes:
    hiddens: inputs of the last M tokens, newest last.
    vectors: in float32, as they were written before the newest segment.
    num_held: tokens of the newest segment that were read.
  """

  hiddens: shapes.LayerMemory
  vectors: Vectors
  num_held: jt.Int[shapes.Array, ""]

  @property
  def num_positions(self) -> int:
    """The length of the memory, M."""
    return self.hiddens.shape[-2]


class Kernels(NamedTuple):
  """The matrices of an attention without positions."""

  query: jax.Array
  key: jax.Array
  value: jax.Array
  output: jax.Array


@registry.mixers.register("block_recurrent")
class BlockRecurrent(mixer.Mixer):
  """Attention to memory, segment and state vectors."""

  class Fields(fields.Group):
    """The state of `block_recurrent` layers (docs/memory.md)."""

    num_vectors: int = fields.field(128, "at least 1")
    """Number of vectors that are read and written once a segment."""

  attends = True
  takes_limit = True
  attends_zeros = False
  writes_segments = True
  has_limit = False

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """A few vectors."""
    return num_tokens, {"num_vectors": 3}

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """No tokens, and vectors of zeros."""
    del step_len
    width = config.model_dim
    num_vectors = (
      config.own(BlockRecurrent.Fields).num_vectors if mem_len else 0
    )
    return Memory(
      jnp.zeros((batch_size, mem_len, width), config.dtype),
      jnp.zeros((batch_size, num_vectors, width)),
      jnp.zeros((), jnp.int32),
    )

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Writes the vectors if a segment starts, and attends to everything."""
    config = self.config
    width = config.model_dim
    lanes, segment_len, _ = hidden.shape
    mem_len = state.hiddens.shape[1]
    num_vectors = config.own(BlockRecurrent.Fields).num_vectors
    reach = self.reach(shared, jnp.minimum(shared.length, mem_len), mem_len)
    memory = norm(state.hiddens)
    rows = norm(hidden)
    near, inspected = attention.attend(
      self, memory, rows, reach=reach, shared=shared
    )

    # Tokens to vectors, vectors to vectors, and vectors to tokens.
    reading = self._kernels("read", shared.dropout_lanes)
    mixing = self._kernels("mix", shared.dropout_lanes)
    writing = self._kernels("write", shared.dropout_lanes)
    write_bias = self.vector("write_bias", width)
    # A gate that keeps most of a vector at first.
    gate_bias = self.param("gate_bias", nn.initializers.ones, (width,))
    # The paper's learned state IDs, which tell the vectors apart.
    state_ids = self.matrix("vectors", (num_vectors, width))
    vector_norm = norm_lib.Norm(config, name="vector_norm")

    def with_ids(vectors: Vectors) -> Vectors:
      return vector_norm(vectors.astype(config.dtype)) + state_ids[None]

    # The newest segment of the document is written into the vectors, which are
    # zeros unless they have tokens of the document already.
    is_old = shared.length > state.num_held
    vectors = mixer.zeros_if_absent(state.vectors, num_vectors)
    vectors = jnp.where(is_old[:, None, None], vectors, 0)
    tokens = memory if mem_len else jnp.zeros((lanes, 1, width), rows.dtype)
    age = jnp.arange(tokens.shape[1], 0, -1, dtype=jnp.int32)[None]
    is_new = age <= jnp.minimum(shared.length, state.num_held)[:, None]
    old = with_ids(vectors)
    added = _attend(config, mixing, old, old, None)
    added += _attend(config, writing, old, tokens, is_new)
    added = (added + write_bias[None, None]).astype(jnp.float32)
    gate = nn.sigmoid(gate_bias)[None, None]
    written = gate * vectors + (1 - gate) * added
    num_before = jnp.zeros((), jnp.int32)
    if shared.first_position is not None:  # A part of a segment writes nothing.
      is_start = shared.first_position == 0
      written = jnp.where(is_start, written, vectors)
      num_before = jnp.where(is_start, 0, state.num_held)

    # Tokens see vectors of their own document, if it began before the segment.
    position = jnp.arange(segment_len, dtype=jnp.int32)[None]
    is_known = (shared.length > num_before)[:, None] & (mem_len > 0)
    is_known = is_known & (shared.since_reset > position)
    read = _attend(config, reading, rows, with_ids(written), None)
    read = jnp.where(is_known[:, :, None], read, 0)
    drop = dropout_lib.of_states(config)
    output = near + drop(read, dropout_lanes=shared.dropout_lanes)

    held = jnp.concatenate([state.hiddens, hidden], axis=1)
    remembered = shared.newest(held, mem_len)
    count = shared.num_counted(segment_len)
    return output, mixer.Kept(
      Memory(
        remembered,
        written[:, : state.vectors.shape[1]],
        jnp.minimum(num_before + count, visibility.LONG),
      ),
      inspected=inspected,
    )

  def _kernels(self, name: str, dropout_lanes: shapes.Lanes | None) -> Kernels:
    """The matrices of one of the attentions of vectors."""
    width = self.config.model_dim
    inner = self.config.num_heads * self.config.head_dim
    into_heads = functools.partial(
      self.matrix,
      shape=(width, inner),
      split="columns",
      dropout_lanes=dropout_lanes,
    )
    return Kernels(
      query=into_heads(f"{name}_query"),
      key=into_heads(f"{name}_key"),
      value=into_heads(f"{name}_value"),
      output=self.matrix(
        f"{name}_output",
        (inner, width),
        split="rows",
        dropout_lanes=dropout_lanes,
      ),
    )

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of attention, of reading the vectors, and of writing them.

    Vectors are written once in a segment, which its tokens share, from those of
    its tokens that memory holds.
    """
    result = attention.Attention.flops(config, reading)
    if not reading.mem_len:
      return result
    width = config.num_heads * config.head_dim
    num_vectors = config.own(BlockRecurrent.Fields).num_vectors
    share = num_vectors / reading.segment_len
    held = min(reading.mem_len / reading.segment_len, 1.0)
    # Queries and outputs of reading, keys and values of writing; four of the
    # vectors' own attention, and two each of reading and writing.
    projections = (2 + 2 * held + 8 * share) * config.model_dim
    pairs = (2 + 2 * held + 2 * share) * num_vectors
    return result + 2 * width * (projections + pairs)


def _attend(
  config: schema.ModelConfig,
  kernels: Kernels,
  queries: jt.Float[shapes.Array, "B Q D"],
  rows: jt.Float[shapes.Array, "B R D"],
  is_visible: jt.Bool[shapes.Array, "B R"] | None,
) -> jt.Float[shapes.Array, "B Q D"]:
  """Attention of queries to rows, without positions, and its projection."""

  def project(states: jax.Array, kernel: jax.Array) -> jax.Array:
    heads = dense.times(states, kernel)
    return heads.reshape(*states.shape[:2], config.num_heads, config.head_dim)

  values = jax.nn.dot_product_attention(
    project(queries, kernels.query),
    project(rows, kernels.key),
    project(rows, kernels.value),
    mask=None if is_visible is None else is_visible[:, None, None],
  )
  return dense.times(values.reshape(*queries.shape[:2], -1), kernels.output)
