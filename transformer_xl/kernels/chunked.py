"""Relative attention in plain XLA, a block of queries at a time.

Each block attends only to the keys that it may see by causality, and the
backward pass computes its scores again, so that at no time more than one block
of scores is in memory.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_xl import attention
from transformer_xl import shapes

BLOCK = 128  # Queries; see docs/kernels.md.


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  *,
  content_bias: shapes.Biases,
  position_bias: shapes.Biases,
  reach: shapes.Reach,
  dropout: Callable[[jax.Array], jax.Array] | None,
) -> shapes.Queries:
  """`attention.relative_attention`, with the same arguments.

  With `dropout`, whose random numbers belong to a module, scores are kept for
  the backward pass. Without, it is None.
  """
  segment_len, context_len = query.shape[1], key.shape[1]
  attend: Callable[..., jax.Array] = functools.partial(
    attention.relative_attention, dropout=dropout or (lambda weights: weights)
  )
  if dropout is None:
    attend = jax.checkpoint(attend)
  blocks = []
  for start in range(0, segment_len, BLOCK):
    block = slice(start, min(start + BLOCK, segment_len))
    seen = context_len - segment_len + block.stop
    blocks.append(
      attend(
        query[:, block],
        key[:, :seen],
        value[:, :seen],
        position_key[context_len - seen :],
        content_bias=content_bias,
        position_bias=position_bias,
        reach=reach[:, block],
      )
    )
  return jnp.concatenate(blocks, axis=1)
