"""Mamba-2: a state space whose decay is one number for each head and token.

Every channel of a head has a state of N numbers, which a token lets decay,
adds to and reads (Dao and Gu 2024, "Transformers are SSMs", sections 6 and 7;
docs/specification.md, section 29). A segment is read in chunks, in which tokens
see each other as in attention without a softmax.

Shapes: B lanes, T tokens, H heads, P channels of a head, N width of a state, J
rows that the convolution remembers, W = H P + 2 N its channels, L tokens of a
chunk, D model width.
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
from transformer_xl.model import norm as norm_lib
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import decay as decay_lib
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import short_convolution

# Tokens of a chunk. A longer one has fewer steps and more useless products.
CHUNK = 64

States = jt.Float[shapes.Array, "B H N P"]
Vectors = jt.Float[shapes.Array, "B T 1 N"]


class Memory(NamedTuple):
  """The state of one layer; without memory, H and J are 0.

  Attributes:
    states: of the channels of each head, in float32.
    rows: values, keys and queries of the last tokens before the convolution,
      newest last. They are zeros where they are not of the document.
  """

  states: States
  rows: jt.Float[shapes.Array, "B J W"]


@registry.mixers.register("mamba2")
class Mamba2(mixer.Mixer):
  """Adds to the states of channels and reads them, all with a decay."""

  has_limit = False

  class Fields(fields.Group):
    """The heads of `mamba2` layers, `num_heads` in number (docs/memory.md)."""

    state_dim: int = fields.field(128, "at least 1")
    """Width of the state of one channel."""
    value_dim: int = fields.field(64, "at least 1")
    """Channels of one head; it remembers state_dim x value_dim numbers."""

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """Small heads and states."""
    return num_tokens, {"state_dim": 3, "value_dim": 5}

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """Zeros; they are carried on whenever `mem_len` is above 0."""
    del step_len
    own = config.own(Mamba2.Fields)
    num_heads = config.num_heads if mem_len else 0
    num_rows = short_convolution.NUM_BEFORE if mem_len else 0
    channels = config.num_heads * own.value_dim + 2 * own.state_dim
    return Memory(
      jnp.zeros((batch_size, num_heads, own.state_dim, own.value_dim)),
      jnp.zeros((batch_size, num_rows, channels), config.dtype),
    )

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Reads the segment in chunks; a single token is a chunk of its own."""
    config = self.config
    own = config.own(Mamba2.Fields)
    num_heads = config.num_heads
    lanes, segment_len, _ = hidden.shape
    width = num_heads * own.value_dim
    rows = norm(hidden)
    convolved, latest = self._convolved(rows, state, shared)
    ends = (width, width + own.state_dim)
    value, key, query = jnp.split(convolved, ends, axis=2)
    value = value.reshape(lanes, segment_len, num_heads, own.value_dim)

    log_decay, step = decay_lib.of_tokens(self, rows)
    # Padding changes nothing.
    counts = shared.counts(segment_len)[None, :, None]
    log_decay = jnp.where(counts, log_decay, 0)
    step = jnp.where(counts, step, 0)

    outputs, states = read_chunks(
      TokenInputs(
        query=query[:, :, None],
        key=key[:, :, None],
        value=step[..., None] * value,
        log_decay=log_decay,
        resets=shared.resets,
      ),
      mixer.zeros_if_absent(state.states, num_heads),
      chunk_len=min(CHUNK, segment_len),
    )
    states = states[:, : state.states.shape[1]]

    skip = self.param("skip_scale", nn.initializers.ones, (num_heads,))
    outputs = outputs + skip[None, None, :, None] * value
    gate = self._project(rows, "gate", width, "columns", shared)
    gate = gate.astype(jnp.float32)
    gated = outputs.reshape(lanes, segment_len, width) * nn.silu(gate)
    scale = self.param("value_scale", nn.initializers.ones, (width,))
    normed = norm_lib.rms_norm(gated, scale, config.layer_norm_epsilon)
    by_head = normed.astype(config.dtype).reshape(value.shape)
    mixed = parameters.project_output(
      self, by_head, dropout_lanes=shared.dropout_lanes
    )
    return mixed, mixer.Kept(Memory(states, latest))

  def _convolved(
    self, rows: shapes.Hidden, state: Memory, shared: mixer.Shared
  ) -> tuple[
    jt.Float[shapes.Array, "B T channels"],
    jt.Float[shapes.Array, "B before channels"],
  ]:
    """Values, the key and the query of all heads, and the rows to remember."""
    own = self.config.own(Mamba2.Fields)
    width = self.config.num_heads * own.value_dim
    kinds = (
      ("value", width, "columns"),
      ("key", own.state_dim, "inputs"),
      ("query", own.state_dim, "inputs"),
    )
    projected = [
      self._project(rows, name, size, split, shared)
      for name, size, split in kinds
    ]
    joined = jnp.concatenate(projected, axis=2)
    channels = joined.shape[2]
    taps = self.param(
      "convolution",
      short_convolution.draw_taps,
      (short_convolution.LENGTH, channels),
      jnp.float32,
    )
    return short_convolution.convolve(
      joined,
      state.rows,
      taps.astype(self.config.dtype),
      shared,
      bias=self.vector("convolution_bias", channels),
    )

  def _project(
    self,
    rows: shapes.Hidden,
    name: str,
    size: int,
    split: str,
    shared: mixer.Shared,
  ) -> jt.Float[shapes.Array, "B T size"]:
    kernel = self.matrix(
      name,
      (self.config.model_dim, size),
      split=split,
      dropout_lanes=shared.dropout_lanes,
    )
    return dense.times(rows, kernel)

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of the projections, the convolution and the states.

    A token adds a product to the states of each channel, and reads them.
    """
    del reading
    own = config.own(Mamba2.Fields)
    width = config.num_heads * own.value_dim
    projected = 3 * width + 2 * own.state_dim + config.num_heads
    convolution = short_convolution.LENGTH * (width + 2 * own.state_dim)
    states = 2 * width * own.state_dim
    return 2.0 * (config.model_dim * projected + convolution + states)


class TokenInputs(NamedTuple):
  """Vectors and gates of the tokens of a segment."""

  query: Vectors
  key: Vectors
  value: jt.Float[shapes.Array, "B T H P"]
  log_decay: decay_lib.Gates
  resets: shapes.Resets


def read_chunks(
  tokens: TokenInputs, states: States, *, chunk_len: int
) -> tuple[jt.Float[shapes.Array, "B T H P"], States]:
  """The recurrence of the states, in chunks of `chunk_len` tokens.

  With the states S [N, P] of a head and alpha = exp(log_decay), every token
  makes

      S = alpha S + k v^T        output = S^T q

  Resets put zeros in the place of S before their token. All tokens of all
  chunks see those of their own chunk at once; then the states at the starts are
  inserted chunk by chunk (section 6 of the paper).

  Returns:
    The outputs, and the states after the last token.
  """
  segment_len = tokens.value.shape[1]
  in_chunks = functools.partial(decay_lib.in_chunks, chunk_len=chunk_len)
  query = in_chunks(tokens.query)
  key = in_chunks(tokens.key)
  value = in_chunks(tokens.value)
  log_decay = in_chunks(tokens.log_decay)
  is_first = in_chunks(tokens.resets[:, :, None])
  decays = decay_lib.between_tokens(log_decay, is_first)

  products = jnp.einsum("...in,...jn->...ij", query, key)
  near = (decays.between * products) @ value
  to_end = decays.between[..., -1, :, None]
  added = jnp.einsum("...jn,...jp->...np", to_end * key, value)
  from_start = decays.from_start[..., None]

  def insert(
    start: States, chunk: tuple[jax.Array, jax.Array]
  ) -> tuple[States, States]:
    """Carries the states over a chunk; returns those at its start as well."""
    kept, added = chunk
    return kept * start + added, start

  kept = from_start[..., -1:, :]
  states, starts = jax.lax.scan(insert, states, (kept, added))
  outputs = near + (from_start * query) @ starts
  return decay_lib.joined(outputs, segment_len), states
