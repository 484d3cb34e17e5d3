"""Memory tokens, which a segment hands to the next (Bulatov et al. 2022).

A segment is read between two groups of `model.num_memory_tokens` vectors. Both
are what the segment before has written, or learned vectors where a document
starts. Tokens see those in front; those behind see the tokens, and the states
of the last layer there are what the next segment reads. The layers take these
vectors as tokens of the stream: they count in distances and in memory, and see
what stands before them alone (docs/specification.md, section 32).

Shapes: B lanes, T tokens, S memory tokens, R = S + T + S rows, D model width.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters

Vectors = jt.Float[shapes.Array, "B S D"]


def first_vectors(module: nn.Module) -> jt.Float[shapes.Array, "S D"] | None:
  """The learned vectors that a document starts with, as large as embeddings.

  The result is None for a model without memory tokens. `module` owns the
  parameter and has a `config`.
  """
  config = module.config
  if not config.num_memory_tokens:
    return None
  init = parameters.with_split(nn.initializers.normal(config.init_std), "whole")
  shape = (config.num_memory_tokens, config.model_dim)
  drawn = module.param("memory_tokens", init, shape, jnp.float32)
  return drawn.astype(config.dtype) * math.sqrt(config.model_dim)


def empty(config: schema.ModelConfig, batch_size: int) -> Vectors | None:
  """What is handed to the first segment: nothing that is read."""
  if not config.num_memory_tokens:
    return None
  shape = (batch_size, config.num_memory_tokens, config.model_dim)
  return jnp.zeros(shape, config.dtype)


def num_rows(config: schema.ModelConfig, segment_len: int) -> int:
  """How many vectors the layers read of a segment."""
  return segment_len + 2 * config.num_memory_tokens


def where_new(
  is_new: jt.Bool[shapes.Array, "B"],
  first: jt.Float[shapes.Array, "S D"],
  held: Vectors,
) -> Vectors:
  """The learned vectors in lanes that hold nothing of their document."""
  return jnp.where(is_new[:, None, None], first[None], held)


def around(
  vectors: shapes.Hidden,
  resets: shapes.Resets | None,
  length: jt.Int[shapes.Array, "B"],
  held: Vectors,
  first: jt.Float[shapes.Array, "S D"],
) -> tuple[jt.Float[shapes.Array, "B R D"], jt.Bool[shapes.Array, "B R"]]:
  """A segment between its memory tokens, and the resets of all these rows.

  Args:
    vectors: of the tokens.
    resets: True where a token is the first of a document.
    length: rows of its document that each lane has read before.
    held: what the segment before has written.
    first: what a document starts with.
  """
  lanes, segment_len, _ = vectors.shape
  size = held.shape[1]
  if resets is None:
    resets = jnp.zeros((lanes, segment_len), bool)
  # A document that starts with the segment starts with its memory tokens.
  starts = resets[:, 0]
  inside = jnp.asarray(resets).at[:, 0].set(False)
  front = where_new(starts | (length == 0), first, held)
  behind = where_new(jnp.any(inside, axis=1), first, front)
  rows = jnp.concatenate([front, vectors, behind], axis=1)
  row_resets = jnp.pad(inside, ((0, 0), (size, size)))
  return rows, row_resets.at[:, 0].set(starts)
