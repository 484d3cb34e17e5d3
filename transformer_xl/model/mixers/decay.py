"""Parts of mixers whose matrices decay from token to token.

Each head has a decay for every token, and a segment is read in chunks: within
one, tokens see each other through products of decays, and the matrix at its
start through the decays from there on. `delta` and `mamba2` read so.

Shapes: B lanes, T tokens, H heads, C chunks, L tokens of a chunk.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import visibility
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer

Gates = jt.Float[shapes.Array, "B T H"]


class Decays(NamedTuple):
  """Products of the decays between the tokens of a chunk.

  Attributes:
    between: from each token (last axis) to each later one and to itself; 0
      across a reset and to earlier tokens.
    from_start: from the start of the chunk to each token, its own decay
      included; 0 after a reset.
  """

  between: jt.Float[jax.Array, "C B H L L"]
  from_start: jt.Float[jax.Array, "C B H L"]


def between_tokens(
  log_decay: jt.Float[jax.Array, "C B H L"],
  is_first: jt.Bool[jax.Array, "C B _ L"],
) -> Decays:
  """Multiplies the decays of the tokens of each chunk.

  Args:
    log_decay: logarithm of each token's decay.
    is_first: where a document starts.
  """
  chunk_len = log_decay.shape[-1]
  flat = is_first.reshape(-1, chunk_len)
  since_reset = visibility.since_reset(flat).reshape(is_first.shape)

  # Every token has its own sum of the logarithms after it. Differences of sums
  # from the start of the chunk would have the rounding of earlier documents.
  token = jnp.arange(chunk_len, dtype=jnp.int32)
  distance = (token[:, None] - token[None])[None, None, None]
  logs = jnp.where(distance > 0, log_decay[..., None], 0)
  is_seen = (distance >= 0) & (distance <= since_reset[..., None])
  between = jnp.where(is_seen, jnp.exp(jnp.cumsum(logs, axis=-2)), 0)
  has_start = since_reset > token[None, None, None]
  sums = jnp.cumsum(log_decay, axis=-1)
  return Decays(between, jnp.where(has_start, jnp.exp(sums), 0))


def in_chunks(rows: jax.Array, *, chunk_len: int) -> jax.Array:
  """From [B, T, H, ...] to [C, B, H, L, ...]; padding is zeros."""
  lanes, segment_len, *rest = rows.shape
  num_chunks = -(-segment_len // chunk_len)
  padding = num_chunks * chunk_len - segment_len
  parts = jnp.pad(rows, [(0, 0), (0, padding), *[(0, 0)] * len(rest)])
  parts = parts.reshape(lanes, num_chunks, chunk_len, *rest)
  return jnp.moveaxis(parts, (1, 3), (0, 2))


def joined(
  chunks: jt.Float[jax.Array, "C B H L E"], segment_len: int
) -> jt.Float[jax.Array, "B T H E"]:
  """The rows of chunks as those of the segment; padding is left out."""
  _, lanes, num_heads, _, width = chunks.shape
  rows = jnp.moveaxis(chunks, (0, 2), (1, 3))
  return rows.reshape(lanes, -1, num_heads, width)[:, :segment_len]


def of_tokens(layer: mixer.Mixer, rows: shapes.Hidden) -> tuple[Gates, Gates]:
  """Mamba's decay of each token and head (Gu and Dao 2023, section 3.6).

  Args:
    layer: owns the parameters `step`, `step_bias` and `rate_bias`.
    rows: the layer's input, normalised.

  Returns:
    The logarithm of the decay, -exp(rate_bias) times the step, and the step,
    softplus(W rows + step_bias).
  """
  config = layer.config
  num_heads = config.num_heads
  step_kernel = layer.matrix("step", (config.model_dim, num_heads))
  step_bias = layer.param("step_bias", _draw_step, (num_heads,))
  rate_bias = layer.param("rate_bias", _draw_rate, (num_heads,))
  step = dense.times(rows, step_kernel).astype(jnp.float32)
  step = jax.nn.softplus(step + step_bias[None, None])
  return -jnp.exp(rate_bias)[None, None] * step, step


def _draw_rate(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Logarithms of rates from 1 to 16, as in Mamba-2 (Dao and Gu 2024)."""
  return jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0))


def _draw_step(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Biases whose softplus is from 0.001 to 0.1, evenly in its logarithm."""
  ends = jnp.log(jnp.array([1e-3, 1e-1]))
  step = jnp.exp(jax.random.uniform(key, shape, minval=ends[0], maxval=ends[1]))
  return jnp.log(jnp.expm1(step))
