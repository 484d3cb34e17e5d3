"""Gated DeltaNet: a matrix in each head, written by the gated delta rule.

A token reads a value of the matrix with its key, and writes back the difference
to its own value (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks",
sections 3.1 and 3.4; docs/specification.md, section 26). A segment is read in
chunks, whose tokens are one triangular system (Yang et al. 2024, "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length", section 3).

Shapes: B lanes, T tokens, H heads, Dk and Dv widths of keys and values, J rows
that the convolution remembers, W = H (2 Dk + Dv) its channels, L tokens of a
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
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import associations
from transformer_xl.model.mixers import decay as decay_lib
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import short_convolution

# Tokens of a chunk. A longer one has fewer steps and more useless products.
CHUNK = 64

KeyHeads = jt.Float[shapes.Array, "B T H Dk"]
ValueHeads = jt.Float[shapes.Array, "B T H Dv"]
Matrices = jt.Float[shapes.Array, "B H Dk Dv"]


class Memory(NamedTuple):
  """The state of one layer; without memory, H and J are 0.

  Attributes:
    matrices: what keys are associated with, in float32.
    rows: queries, keys and values of the last tokens before the convolution,
      newest last. They are zeros where they are not of the document.
  """

  matrices: Matrices
  rows: jt.Float[shapes.Array, "B J W"]


@registry.mixers.register("delta")
class Delta(mixer.Mixer):
  """Reads and writes a matrix in each head."""

  has_limit = False

  class Fields(fields.Group):
    """The heads of `delta` layers, `num_heads` in number (docs/memory.md)."""

    key_dim: int = fields.field(64, "at least 1")
    """Width of the keys and queries of one head."""
    value_dim: int = fields.field(64, "at least 1")
    """Width of the values of one head; it remembers key_dim x value_dim
    numbers."""

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """Small heads, though keys that are shorter round badly."""
    return num_tokens, {"key_dim": 4, "value_dim": 5}

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
    delta = config.own(Delta.Fields)
    num_heads = config.num_heads if mem_len else 0
    num_rows = short_convolution.NUM_BEFORE if mem_len else 0
    channels = config.num_heads * (2 * delta.key_dim + delta.value_dim)
    return Memory(
      jnp.zeros((batch_size, num_heads, delta.key_dim, delta.value_dim)),
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
    delta = config.own(Delta.Fields)
    num_heads = config.num_heads
    segment_len = hidden.shape[1]
    rows = norm(hidden)
    heads = associations.heads(
      self,
      rows,
      state.rows,
      shared,
      key_dim=delta.key_dim,
      value_dim=delta.value_dim,
    )
    query = heads.query * delta.key_dim**-0.5

    log_decay, _ = decay_lib.of_tokens(self, rows)
    write_kernel = self.matrix("write", (config.model_dim, num_heads))
    write = nn.sigmoid(dense.times(rows, write_kernel).astype(jnp.float32))
    # Padding changes nothing.
    counts = shared.counts(segment_len)[None, :, None]
    log_decay = jnp.where(counts, log_decay, 0)
    write = jnp.where(counts, write, 0)

    outputs, matrices = read_chunks(
      TokenInputs(
        query, heads.key, heads.value, log_decay, write, shared.resets
      ),
      mixer.zeros_if_absent(state.matrices, num_heads),
      chunk_len=min(CHUNK, segment_len),
    )
    matrices = matrices[:, : state.matrices.shape[1]]

    mixed = associations.gated_output(self, outputs, rows, shared)
    return mixed, mixer.Kept(Memory(matrices, heads.rows))

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of the projections, the convolution and the rule itself.

    A head reads its matrix by key, adds a product to it, and reads it by query.
    """
    del reading
    delta = config.own(Delta.Fields)
    channels = 2 * delta.key_dim + delta.value_dim
    projections = config.model_dim * (2 * delta.key_dim + 3 * delta.value_dim)
    gates = 2 * config.model_dim
    convolution = short_convolution.LENGTH * channels
    matrix = 3 * delta.key_dim * delta.value_dim
    per_head = projections + gates + convolution + matrix
    return 2.0 * config.num_heads * per_head


class TokenInputs(NamedTuple):
  """Vectors and gates of the tokens of a segment."""

  query: KeyHeads
  key: KeyHeads
  value: ValueHeads
  log_decay: decay_lib.Gates
  write: decay_lib.Gates
  resets: shapes.Resets


def read_chunks(
  tokens: TokenInputs, matrices: Matrices, *, chunk_len: int
) -> tuple[ValueHeads, Matrices]:
  """The gated delta rule over a segment, in chunks of `chunk_len` tokens.

  With the matrix S [Dk, Dv] of a head, alpha = exp(log_decay) and beta = write,
  every token makes

      S = alpha (I - beta k k^T) S + beta k v^T        output = S^T q

  Resets put zeros in the place of S before their token.

  In a chunk, S after token t is the matrix at its start, decayed, and a sum of
  decayed k_i u_i^T over the tokens i up to t. The u, what tokens write, solve a
  lower triangular system, whose right-hand side depends linearly on the start.
  So all chunks are solved at once, and the start is inserted chunk by chunk.

  Returns:
    The outputs, and the matrices after the last token.
  """
  segment_len = tokens.query.shape[1]
  in_chunks = functools.partial(decay_lib.in_chunks, chunk_len=chunk_len)
  query = in_chunks(tokens.query)
  key = in_chunks(tokens.key)
  value = in_chunks(tokens.value)
  log_decay = in_chunks(tokens.log_decay)
  write = in_chunks(tokens.write)[..., None]
  is_first = in_chunks(tokens.resets[:, :, None])
  decay, from_start = decay_lib.between_tokens(log_decay, is_first)
  from_start = from_start[..., None]

  # (I + A) u = beta (v - S^T k), where A, `earlier`, has what earlier tokens
  # wrote. Solved for v and for k, it gives u = `written` - `of_start` S for any
  # S. The gradient of the solution takes the same inverse, transposed, and does
  # not pass through the products that compute the inverse.
  products = jnp.einsum("...id,...jd->...ij", key, key)
  earlier = jnp.tril(write * decay * products, -1)
  known = write * jnp.concatenate([value, from_start * key], axis=-1)
  inverse = _inverse_of_unit_lower(jax.lax.stop_gradient(earlier))
  solved = jax.lax.custom_linear_solve(
    lambda written: written + earlier @ written,
    known,
    solve=lambda _, rows: inverse @ rows,
    transpose_solve=lambda _, rows: jnp.swapaxes(inverse, -1, -2) @ rows,
  )
  written, of_start = jnp.split(solved, (value.shape[-1],), axis=-1)
  seen = decay * jnp.einsum("...id,...jd->...ij", query, key)

  def read_chunk(
    start: jax.Array, chunk: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, jax.Array]:
    """Inserts the matrices at the start of a chunk, [B, H, Dk, Dv]."""
    written, of_start, seen, from_start, query, to_end, key = chunk
    written = written - of_start @ start
    outputs = (from_start * query) @ start + seen @ written
    added = jnp.einsum("...id,...ie->...de", to_end * key, written)
    return from_start[..., -1:, :] * start + added, outputs

  to_end = decay[..., -1, :, None]
  chunks = (written, of_start, seen, from_start, query, to_end, key)
  matrices, outputs = jax.lax.scan(read_chunk, matrices, chunks)
  return decay_lib.joined(outputs, segment_len), matrices


def _inverse_of_unit_lower(
  below: jt.Float[shapes.Array, "*G L L"],
) -> jt.Float[shapes.Array, "*G L L"]:
  """The inverse of I + `below`, which has numbers below its diagonal only.

  Blocks on the diagonal are inverted two by two, from single numbers on, by
  products of whole matrices. XLA's triangular solver calls LAPACK on a CPU,
  whose threads wait for each other where others need the cores, too.
  """
  length = below.shape[-1]
  token = jnp.arange(length)
  inverse = jnp.broadcast_to(jnp.eye(length), below.shape)
  multiply = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  size = 1
  while size < length:
    # [[X, 0], [C, Y]] has the inverse [[X', 0], [-Y' C X', Y']].
    block = token // size
    is_pair = block[:, None] == block[None] + 1
    is_corner = is_pair & (block % 2 == 1)[:, None]
    corner = jnp.where(is_corner, below, 0)
    inverse = inverse - multiply(inverse, multiply(corner, inverse))
    size *= 2
  return inverse
