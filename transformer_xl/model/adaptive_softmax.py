"""Adaptive input and adaptive softmax with tied tables and projections.

Frequent words come first in the vocabulary; `cutoffs` split it into clusters,
and each rarer cluster may use vectors that are `div_val` times narrower
(Grave et al. 2017; Baevski & Auli 2019; facts 2.8 and 2.9). The first cluster
is the shortlist; every other one has a column beside it in the head.

Shapes: B lanes, T tokens, D model width, V vocabulary, C tail clusters,
E_c width and V_c size of cluster c.
"""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import cross_entropy
from transformer_xl.model import sparse_tails
from transformer_xl.model.kernels import dense


class Cluster(NamedTuple):
  """One run of consecutive ids."""

  start: int
  stop: int
  width: int  # E_c.


class Projection(NamedTuple):
  """What maps hidden states to logits; `None` stands for the identity."""

  kernels: tuple[jt.Float[shapes.Array, "V_c E_c"], ...]
  projections: tuple[jt.Float[shapes.Array, "E_c D"] | None, ...]
  bias: jt.Float[shapes.Array, "V"]
  cluster_kernel: jt.Float[shapes.Array, "C E"]
  cluster_bias: jt.Float[shapes.Array, "C"]


def clusters(config: schema.ModelConfig) -> tuple[Cluster, ...]:
  """The clusters of a model's vocabulary, shortlist first."""
  ends = (*config.cutoffs, config.vocab_size)
  starts = (0, *config.cutoffs)
  return tuple(
    Cluster(start, stop, config.embed_dim // config.div_val**index)
    for index, (start, stop) in enumerate(zip(starts, ends, strict=True))
  )


class AdaptiveEmbedding(nn.Module):
  """Names the tables and projections of the adaptive input."""

  config: schema.ModelConfig

  def setup(self) -> None:
    """Names the parameters."""
    config = self.config
    parts = clusters(config)
    if config.div_val == 1:  # One table; its clusters share a projection.
      whole = Cluster(0, config.vocab_size, config.embed_dim)
      parts = (whole,)
    normal = nn.initializers.normal
    self.tables = tuple(
      self.param(
        f"table_{index}",
        normal(config.init_std),
        (part.stop - part.start, part.width),
        jnp.float32,
      )
      for index, part in enumerate(parts)
    )
    self.projections = tuple(
      _projection(self, config, index, part.width)
      for index, part in enumerate(parts)
    )

  def __call__(self, tokens: shapes.Tokens) -> shapes.Hidden:
    """Vectors scaled by sqrt(D), before dropout."""
    dtype = jnp.dtype(self.config.dtype)
    vectors = embed(tokens, self.tables, self.projections, dtype=dtype)
    return vectors * jnp.asarray(math.sqrt(self.config.model_dim), dtype)


class AdaptiveSoftmax(nn.Module):
  """Names what the adaptive softmax does not share with the input."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(self, tables: tuple, projections: tuple) -> Projection:
    """The weights of the softmax, given those of the embedding."""
    config, parts = self.config, clusters(self.config)
    zeros = nn.initializers.zeros
    tails = len(parts) - 1
    cluster_kernel = jnp.zeros((0, config.embed_dim), jnp.float32)
    cluster_bias = jnp.zeros((0,), jnp.float32)
    if tails:
      init = zeros
      if config.init_style == "pytorch":
        init = nn.initializers.normal(config.init_std)
      shape = (tails, config.embed_dim)
      cluster_kernel = self.param("cluster_kernel", init, shape, jnp.float32)
      cluster_bias = self.param("cluster_bias", zeros, (tails,), jnp.float32)
    return Projection(
      kernels=self._kernels(parts, tables),
      projections=self._projections(parts, projections),
      bias=self.param("bias", zeros, (config.vocab_size,), jnp.float32),
      cluster_kernel=cluster_kernel,
      cluster_bias=cluster_bias,
    )

  def _kernels(self, parts, tables):
    config = self.config
    if not config.tie_weights:
      init = nn.initializers.normal(config.init_std)
      return tuple(
        self.param(
          f"kernel_{index}",
          init,
          (part.stop - part.start, part.width),
          jnp.float32,
        )
        for index, part in enumerate(parts)
      )
    if config.div_val == 1:
      # Slices would each give a gradient as large as the table.
      return tuple(jnp.split(tables[0], [part.start for part in parts[1:]]))
    return tables

  def _projections(self, parts, projections):
    config = self.config
    tied = {"none": (), "all": range(len(parts))}.get(
      config.tie_projections, range(1, len(parts))
    )
    shared = len(projections) == 1
    return tuple(
      projections[0 if shared else index]
      if index in tied
      else _projection(self, config, index, part.width)
      for index, part in enumerate(parts)
    )


def embed(
  tokens: shapes.Tokens,
  tables: tuple[jt.Float[shapes.Array, "_ _"], ...],  # [V_c, E_c].
  projections: tuple[jt.Float[shapes.Array, "_ D"] | None, ...],
  *,
  dtype: jnp.dtype,
) -> shapes.Hidden:
  """Vectors of width D for tokens, each through its cluster's projection.

  The tables split the vocabulary in order. Unscaled: the model multiplies by
  sqrt(D).
  """
  start, parts = 0, []
  for table, projection in zip(tables, projections, strict=True):
    local = tokens - start
    inside = (local >= 0) & (local < table.shape[0])
    # Else XLA first adds the gradient of the rows to that of a softmax with the
    # same table, for which it gathers all of a split one (docs/tpu.md).
    apart = jax.lax.optimization_barrier(table)
    rows = apart[jnp.where(inside, local, 0)].astype(dtype)
    vectors = _project(rows, projection, transpose=False)
    parts.append(jnp.where(inside[..., None], vectors, 0))
    start += table.shape[0]
  return functools.reduce(jnp.add, parts)


def nll(
  hidden: shapes.Hidden,
  targets: shapes.Tokens,
  weights: Projection,
  *,
  capacities: tuple[float, ...],
) -> shapes.Losses:
  """Negative log-probability of each target in nats, in token order.

  Args:
    hidden: the last layer's states.
    targets: ids.
    weights: of the softmax.
    capacities: for each tail cluster the share of the tokens that it has room
      for. A cluster then only computes the logits of its own targets; where
      there are more than it has room for, it computes those of all tokens, so
      the result is the same. () for all tokens in every cluster.
  """
  shortlist = weights.kernels[0].shape[0]
  start, column = shortlist, targets
  result = jnp.zeros(targets.shape, jnp.float32)
  for index, kernel in enumerate(weights.kernels[1:], start=1):
    inside = (targets >= start) & (targets < start + kernel.shape[0])
    column = jnp.where(inside, shortlist + index - 1, column)
    local = jnp.where(inside, targets - start, 0)
    tail = functools.partial(_tail_nll, weights, index, start)
    capacity = capacities[index - 1] if capacities else 1.0
    result += sparse_tails.with_room(
      tail, hidden, local, inside, capacity=capacity
    )
    start += kernel.shape[0]
  return result + cross_entropy.cross_entropy(
    _head_logits(hidden, weights), column
  )


def log_probs(
  hidden: shapes.Hidden, weights: Projection
) -> jt.Float[shapes.Array, "B T V"]:
  """Log-probabilities of the whole vocabulary, in order of the ids."""
  shortlist = weights.kernels[0].shape[0]
  head = _head_log_probs(hidden, weights)
  parts, start = [head[..., :shortlist]], shortlist
  for index, kernel in enumerate(weights.kernels[1:], start=1):
    parts.append(_tail_log_probs(hidden, weights, head, index, start))
    start += kernel.shape[0]
  return jnp.concatenate(parts, axis=-1)


def top_k(
  hidden: shapes.Hidden, weights: Projection, k: int
) -> tuple[
  jt.Float[shapes.Array, "B T count"], jt.Int[shapes.Array, "B T count"]
]:
  """The k likeliest tokens, likeliest first; of equal ones the lower ids first.

  The same as the k largest of `log_probs`. No token is likelier than its
  cluster, so a tail is only computed if in some position the cluster itself is
  likelier than the k-th token so far.

  Returns:
    Log-probabilities and ids.

  Raises:
    ValueError: there are no k tokens.
  """
  if not 0 < k <= weights.bias.shape[0]:
    raise ValueError(f"k={k} is not in [1, {weights.bias.shape[0]}].")
  start = weights.kernels[0].shape[0]
  head = _head_log_probs(hidden, weights)
  shape = (*head.shape[:-1], k)
  best = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32))
  best = _merge_best(best, head[..., :start], 0)
  bounds = head[..., start:]
  for index, kernel in enumerate(weights.kernels[1:], start=1):

    def with_tail(best, index=index, start=start):
      tail = _tail_log_probs(hidden, weights, head, index, start)
      return _merge_best(best, tail, start)

    is_needed = jnp.any(bounds[..., index - 1] > best[0][..., -1])
    best = jax.lax.cond(is_needed, with_tail, lambda best: best, best)
    start += kernel.shape[0]
  return best


def _merge_best(best, log_probs, start):
  """The likeliest of those so far and of a cluster from id `start` on."""
  k = best[0].shape[-1]
  values, local = jax.lax.top_k(log_probs, min(k, log_probs.shape[-1]))
  tokens = jnp.concatenate([best[1], local.astype(jnp.int32) + start], axis=-1)
  # Equal values keep their order, and those so far have lower ids.
  values, order = jax.lax.top_k(jnp.concatenate([best[0], values], axis=-1), k)
  return values, jnp.take_along_axis(tokens, order, axis=-1)


def _head_log_probs(hidden, weights) -> jax.Array:
  """Of the shortlist's tokens, then of the clusters."""
  head = jnp.concatenate(_head_logits(hidden, weights), axis=-1)
  return jax.nn.log_softmax(head, axis=-1)


def _tail_log_probs(hidden, weights, head, index, start) -> jax.Array:
  tail = _tail_logits(hidden, weights, index, start)
  cluster = head[..., weights.kernels[0].shape[0] + index - 1, None]
  return cluster + jax.nn.log_softmax(tail, axis=-1)


def _head_logits(hidden, weights) -> tuple[jax.Array, ...]:
  """Logits of the shortlist, and of cluster 1, 2, ... (TF's order)."""
  size = weights.kernels[0].shape[0]
  narrow = _project(hidden, weights.projections[0], transpose=True)
  words = _logits(narrow, weights.kernels[0], weights.bias[:size])
  if weights.cluster_bias.size == 0:
    return (words,)
  return words, _logits(narrow, weights.cluster_kernel, weights.cluster_bias)


def _tail_logits(hidden, weights, index, start):
  kernel = weights.kernels[index]
  bias = weights.bias[start : start + kernel.shape[0]]
  narrow = _project(hidden, weights.projections[index], transpose=True)
  return _logits(narrow, kernel, bias)


def _tail_nll(weights, index, start, hidden, local, inside) -> jax.Array:
  """Losses within one cluster, 0 for targets outside of it."""
  logits = _tail_logits(hidden, weights, index, start)
  return jnp.where(inside, cross_entropy.cross_entropy((logits,), local), 0.0)


def _logits(narrow, kernel, bias):
  """Logits in float32, whatever the hidden states' type."""
  product = dense.logits(narrow, kernel.astype(narrow.dtype))
  return product + bias[None, None]


def _project(vectors, projection, *, transpose):
  """Multiplies by a projection [E_c, D] or its transpose, or by nothing."""
  if projection is None:
    return vectors
  projection = projection.astype(vectors.dtype)
  return vectors @ (projection.T if transpose else projection)


def _projection(module, config, index, width) -> jax.Array | None:
  """A projection [E_c, D], or None where there is none (facts 2.8)."""
  equal = width == config.model_dim
  if equal and (config.div_val == 1 or not config.project_equal_width):
    return None
  init = nn.initializers.normal(config.projection_init_std)
  shape = (width, config.model_dim)
  return module.param(f"projection_{index}", init, shape, jnp.float32)
