"""Relative attention (Dai et al. 2019, section 3.3) on plain arrays.

All terms of a score but that of query and key may be absent, so that this is
the attention of every encoding.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import dropout as dropout_lib

BLOCK = 128  # Queries of `chunked_attention`; see docs/kernels.md.


class Inputs(NamedTuple):
  """What every implementation of `relative_attention` takes."""

  query: shapes.Queries
  key: shapes.Keys
  value: shapes.Keys
  reach: shapes.Reach
  position_key: shapes.PositionKeys | None = None
  content_bias: shapes.Biases | None = None
  position_bias: shapes.Biases | None = None
  slopes: shapes.Slopes | None = None  # Constants, without a gradient.


def rel_shift(
  scores: jt.Float[shapes.Array, "B H T K"],
) -> jt.Float[shapes.Array, "B H T K"]:
  """Turns columns of descending distance into columns of keys.

  Row i moves left by T-1-i, at linear cost, by reading the array with one more
  column (paper, appendix B). Entries for keys after the query hold values of
  other rows: the causal mask must follow.
  """
  batch, heads, rows, columns = scores.shape
  padded = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
  folded = padded.reshape(batch, heads, columns + 1, rows)
  return folded[:, :, 1:].reshape(scores.shape)


def distances(
  segment_len: int, context_len: int
) -> jt.Int[shapes.Array, "T K"]:
  """From each query back to each key; below 0 for keys after the query."""
  query = jnp.arange(context_len - segment_len, context_len, dtype=jnp.int32)
  key = jnp.arange(context_len, dtype=jnp.int32)
  return query[:, None] - key[None]


def linear_penalties(
  slopes: shapes.Slopes, distance: jt.Int[shapes.Array, "T K"]
) -> jt.Float[shapes.Array, "H T K"]:
  """Slope times distance, to subtract from scaled scores (ALiBi)."""
  return slopes[:, None, None] * distance[None].astype(jnp.float32)


def visible_keys(
  reach: shapes.Reach, context_len: int
) -> jt.Bool[shapes.Array, "B T K"]:
  """Whether each query may attend to each key; see `memory.reach`."""
  distance = distances(reach.shape[1], context_len)
  return (distance >= 0)[None] & (distance[None] <= reach[:, :, None])


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys | None = None,
  *,
  content_bias: shapes.Biases | None = None,
  position_bias: shapes.Biases | None = None,
  slopes: shapes.Slopes | None = None,
  reach: shapes.Reach,
  dropout: dropout_lib.AttentionDropout | None,
  first_query: int = 0,
) -> shapes.Queries:
  """Attention with content and position terms, softmax in float32.

  Keys and values are those of memory and segment, oldest first. `position_key`
  has projected encodings of the distances K-1 down to 0; without it, scores do
  not have a position term. The content term adds `content_bias`, u, to the
  query, and the position term `position_bias`, v, if there are any. With
  `slopes`, scaled scores fall in proportion to the distance. `reach` is the
  largest distance that each query may see. After dropout the probabilities are
  not re-normalised; `first_query` is where in its segment the first query is.
  """

  def term(bias, axes, keys):
    biased = query if bias is None else query + bias[None, None]
    return jnp.einsum(
      f"bthd,{axes}->bhtk", biased, keys, preferred_element_type=jnp.float32
    )

  with jax.named_scope("content_scores"):
    scores = term(content_bias, "bkhd", key)
  if position_key is not None:
    with jax.named_scope("position_scores"):
      scores += rel_shift(term(position_bias, "khd", position_key))
  # The published code scales the sum, so u and v are scaled too.
  scores *= query.shape[-1] ** -0.5
  if slopes is not None:
    scores -= linear_penalties(slopes, distances(*scores.shape[2:]))[None]
  weights = visible_softmax(scores, reach)
  weights = dropout_lib.drop_weights(
    weights.astype(query.dtype), dropout, first_query=first_query
  )
  with jax.named_scope("attention_values"):
    return jnp.einsum("bhtk,bkhd->bthd", weights, value)


def chunked_attention(
  inputs: Inputs, dropout: dropout_lib.AttentionDropout | None
) -> shapes.Queries:
  """`relative_attention`, a block of queries at a time.

  Each block attends only to the keys that causality lets it see, and the
  backward pass computes its scores again, so that memory never holds more than
  one block of scores.
  """
  segment_len, context_len = inputs.query.shape[1], inputs.key.shape[1]
  blocks = []
  for start in range(0, segment_len, BLOCK):
    block = slice(start, min(start + BLOCK, segment_len))
    seen = context_len - segment_len + block.stop
    attend = functools.partial(
      relative_attention, dropout=dropout, first_query=start
    )
    arrays = inputs._replace(
      query=inputs.query[:, block],
      key=inputs.key[:, :seen],
      value=inputs.value[:, :seen],
      reach=inputs.reach[:, block],
    )
    if inputs.position_key is not None:
      nearest = inputs.position_key[context_len - seen :]
      arrays = arrays._replace(position_key=nearest)
    blocks.append(jax.checkpoint(attend)(**arrays._asdict()))
  return jnp.concatenate(blocks, axis=1)


@jax.named_scope("attention_softmax")
def visible_softmax(
  scores: jt.Float[shapes.Array, "B H T K"], reach: shapes.Reach
) -> jt.Float[shapes.Array, "B H T K"]:
  """Softmax over the keys that each query may see."""
  visible = visible_keys(reach, scores.shape[-1])[:, None]  # [B, 1, T, K]
  scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1)
