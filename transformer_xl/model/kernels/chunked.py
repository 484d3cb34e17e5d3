"""Relative attention in plain XLA, a block of queries at a time.

Each block attends only to the keys that causality lets it see, and the
backward pass computes its scores again, so that memory never holds more than
one block of scores.
"""

import functools

import jax
import jax.numpy as jnp

from transformer_xl.model import attention

BLOCK = 128  # Queries; see docs/kernels.md.


def relative_attention(
  query, key, value, position_key, *, reach, dropout, **biases
) -> jax.Array:
  """`attention.relative_attention`, with the same arguments."""
  segment_len, context_len = query.shape[1], key.shape[1]
  blocks = []
  for start in range(0, segment_len, BLOCK):
    block = slice(start, min(start + BLOCK, segment_len))
    seen = context_len - segment_len + block.stop
    attend = functools.partial(
      attention.relative_attention, dropout=dropout, first_query=start
    )
    blocks.append(
      jax.checkpoint(attend)(
        *(query[:, block], key[:, :seen], value[:, :seen]),
        position_key[context_len - seen :],
        reach=reach[:, block],
        **biases,
      )
    )
  return jnp.concatenate(blocks, axis=1)
