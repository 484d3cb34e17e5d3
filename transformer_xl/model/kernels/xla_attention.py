"""Relative attention (Dai et al. 2019, section 3.3), in XLA.

`scores` lists the terms of a score, so this is the attention of every encoding.
It runs on every device; `kernels.dispatch` says when a TPU takes a fused kernel
instead.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

import functools

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import hardware
from transformer_xl import shapes
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores as scores_lib
from transformer_xl.model.kernels import dense

# Queries that attend at a time; the fastest size on CPU and TPU. A GPU takes
# longer for many small products than for the scores that causality hides.
BLOCK = 128
_GPU_BLOCK = 1024


def relative_attention(
  factors: scores_lib.ScoreFactors,
  value: shapes.Keys,
  dropout: dropout_lib.AttentionDropout | None,
) -> shapes.Queries:
  """Attention of a segment to memory and to itself.

  Queries attend in blocks, each to the keys that are not after its last query,
  so that most of the scores that causality hides are never computed.

  Args:
    factors: what the scores are computed from.
    value: of memory and segment, oldest first.
    dropout: of the attention weights, if there is any.
  """
  segment_len = factors.query.shape[1]
  num_keys = factors.key.shape[1]
  terms = factors.distance
  size = _GPU_BLOCK if hardware.is_gpu() else BLOCK
  blocks = []
  for start in range(0, segment_len, size):
    end = min(start + size, segment_len)
    unseen = segment_len - end  # Keys after the last query of the block.
    seen = num_keys - unseen
    # The smallest distances are last.
    near = terms
    if terms.keys is not None:
      near = near._replace(keys=terms.keys[unseen:])
    if terms.added is not None:
      near = near._replace(added=terms.added[:, unseen:])
    block = scores_lib.ScoreFactors(
      query=factors.query[:, start:end],
      key=factors.key[:, :seen],
      reach=factors.reach[:, start:end],
      distance=near,
    )
    blocks.append(_attend(block, value[:, :seen], dropout, first_query=start))
  return jnp.concatenate(blocks, axis=1)


def _attend(
  block: scores_lib.ScoreFactors,
  value: shapes.Keys,
  dropout: dropout_lib.AttentionDropout | None,
  *,
  first_query: int,
) -> shapes.Queries:
  """Attention of some queries, the first of which is `first_query`.

  Heads come before lanes: the position scores of all lanes are then one matrix
  product for each head, and CPUs multiply these arrays faster.
  """
  query = block.query
  terms = block.distance
  u, v = terms.biases or (None, None)
  lanes, num_queries, heads, width = query.shape

  with jax.named_scope("content_scores"):
    content_query = _scaled(query, u)
    content_key = block.key.transpose(2, 0, 3, 1)  # [H, B, Dh, K]
    scores = dense.product(content_query, content_key)  # [H, B, T, K]

  if terms.keys is not None:
    with jax.named_scope("position_scores"):
      position_query = _scaled(query, v)
      position_query = position_query.reshape(heads, lanes * num_queries, width)
      # A key of zeros in front gives the empty column for the relative shift.
      position_key = terms.keys.transpose(1, 2, 0)  # [H, Dh, K]
      position_key = jnp.pad(position_key, ((0, 0), (0, 0), (1, 0)))
      by_distance = dense.product(position_query, position_key)
      by_distance = by_distance.reshape(heads, lanes, num_queries, -1)
      scores += rel_shift(by_distance)

  added = added_scores(terms, num_queries, scores.shape[-1])
  if added is not None:
    scores += added[:, None]

  weights = visible_softmax(scores, block.reach, query.dtype)

  def weighted(weights: jax.Array, value: jax.Array) -> jax.Array:
    kept = dropout_lib.drop_weights(weights, dropout, first_query=first_query)
    return dense.product(kept, value)

  if dropout is not None:
    # The gradient drops the same weights again: that is faster than to keep
    # them.
    weighted = jax.checkpoint(weighted, prevent_cse=False)
  with jax.named_scope("attention_values"):
    by_head = value.transpose(2, 0, 1, 3)  # [H, B, K, Dh]
    values = weighted(weights, by_head)  # [H, B, T, Dh]
  return values.astype(query.dtype).transpose(1, 2, 0, 3)


def _scaled(
  query: shapes.Queries, bias: shapes.Biases | None
) -> jt.Float[shapes.Array, "H B T Dh"]:
  """Queries with u or v, scaled before the products: scores are larger.

  The published code scales the sum of the terms, so u and v are scaled too.
  """
  wide = query.astype(jnp.float32)
  if bias is not None:
    wide += bias[None, None].astype(jnp.float32)
  wide *= query.shape[-1] ** -0.5
  return wide.astype(query.dtype).transpose(2, 0, 1, 3)


@jax.custom_vjp
def rel_shift(
  scores: jt.Float[shapes.Array, "*heads T columns"],
) -> jt.Float[shapes.Array, "*heads T columns-1"]:
  """Turns columns of descending distance into columns of keys.

  Row i moves left by T-1-i, at linear cost (paper, appendix B). There is an
  empty column in front of the K distances, columns = K + 1. Read as one row
  after the other, without the first T numbers, the array has its rows in place.
  For T = 2 and K = 3, with the distances as subscripts and 0 for the empty
  column:

      0 a2 a1 a0    becomes    a1 a0  0
      0 b2 b1 b0               b2 b1 b0

  Entries for keys after the query, here the last of the first row, hold values
  of other rows, so the causal mask must follow.
  """
  *heads, rows, columns = scores.shape
  flat = scores.reshape(*heads, rows * columns)
  return flat[..., rows:].reshape(*heads, rows, columns - 1)


def _rel_shift_forward(scores: jax.Array) -> tuple[jax.Array, None]:
  return rel_shift(scores), None


def _rel_shift_backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
  *heads, rows, columns = gradient.shape
  # XLA on CPU would turn known zeros into a padding, which takes four times as
  # long as joining two arrays.
  zeros = jnp.zeros((*heads, rows), gradient.dtype)
  zeros = jax.lax.optimization_barrier(zeros)
  flat = gradient.reshape(*heads, rows * columns)
  joined = jnp.concatenate([zeros, flat], axis=-1)
  return (joined.reshape(*heads, rows, columns + 1),)


rel_shift.defvjp(_rel_shift_forward, _rel_shift_backward)


def added_scores(
  terms: scores_lib.DistanceTerms,
  segment_len: int,
  num_keys: int,
) -> jt.Float[shapes.Array, "H T K"] | None:
  """Terms to add to scaled scores, whatever query and key are.

  Entries for keys after the query may hold anything.
  """
  added = None
  if terms.slopes is not None:
    distance = distances(segment_len, num_keys)
    added = -linear_penalties(terms.slopes, distance)
  if terms.added is not None:
    columns = jnp.pad(terms.added, ((0, 0), (1, 0)))  # See `rel_shift`.
    shape = (columns.shape[0], segment_len, columns.shape[1])
    shifted = rel_shift(jnp.broadcast_to(columns[:, None], shape))
    added = shifted if added is None else added + shifted
  return added


def distances(segment_len: int, num_keys: int) -> jt.Int[shapes.Array, "T K"]:
  """Distances from each query back to each key, negative for later keys."""
  query = jnp.arange(num_keys - segment_len, num_keys, dtype=jnp.int32)
  key = jnp.arange(num_keys, dtype=jnp.int32)
  return query[:, None] - key[None]


def linear_penalties(
  slopes: shapes.Slopes, distance: jt.Int[shapes.Array, "T K"]
) -> jt.Float[shapes.Array, "H T K"]:
  """Slope times distance, to subtract from scaled scores."""
  return slopes[:, None, None] * distance[None].astype(jnp.float32)


def visible_mask(
  reach: shapes.Reach, num_keys: int
) -> jt.Bool[shapes.Array, "B T K"]:
  """True where a query may attend to a key: at the distances 0 to `reach`."""
  distance = distances(reach.shape[1], num_keys)
  return (distance >= 0)[None] & (distance[None] <= reach[:, :, None])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
@jax.named_scope("attention_softmax")
def visible_softmax(
  scores: jt.Float[shapes.Array, "H B T K"],
  reach: shapes.Reach,
  dtype: jnp.dtype,
) -> jt.Float[shapes.Array, "H B T K"]:
  """Softmax over the keys that each query may see, in the type `dtype`.

  It is computed in float32. Its gradient is computed from the result, which is
  kept in `dtype` alone: float32 would be most of what an update keeps.
  """
  is_visible = visible_mask(reach, scores.shape[-1])[None]
  scores = jnp.where(is_visible, scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _visible_softmax_forward(
  scores: jax.Array, reach: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  weights = visible_softmax(scores, reach, dtype)
  return weights, weights


@jax.named_scope("attention_softmax")
def _visible_softmax_backward(
  dtype: jnp.dtype, weights: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None]:
  del dtype
  wide = weights.astype(jnp.float32)
  weighted = wide * gradient.astype(jnp.float32)
  of_scores = weighted - wide * jnp.sum(weighted, axis=-1, keepdims=True)
  return of_scores, None  # Hidden keys have a weight of 0.


visible_softmax.defvjp(_visible_softmax_forward, _visible_softmax_backward)
