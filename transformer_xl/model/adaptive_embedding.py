"""Adaptive input: word vectors that are narrower for rarer words.

Frequent words come first in the vocabulary; `cutoffs` split it into clusters,
and each rarer cluster may use vectors that are `div_val` times narrower
(Baevski & Auli 2019; docs/specification.md, section 11). The first cluster is
the shortlist. The adaptive softmax shares tables and projections.

Shapes: B lanes, T tokens, D model width, V vocabulary, E_c width and V_c size
of cluster c.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema


class Cluster(NamedTuple):
  """One run of consecutive ids."""

  start: int
  stop: int
  width: int  # E_c.


def clusters(config: schema.ModelConfig) -> tuple[Cluster, ...]:
  """The clusters of a model's vocabulary, shortlist first."""
  ends = (*config.cutoffs, config.vocab_size)
  starts = (0, *config.cutoffs)
  return tuple(
    Cluster(start, stop, config.embed_dim // config.div_val**index)
    for index, (start, stop) in enumerate(zip(starts, ends, strict=True))
  )


class AdaptiveEmbedding(nn.Module):
  """Tables and projections of the adaptive input."""

  config: schema.ModelConfig

  def setup(self) -> None:
    """Draws the parameters."""
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
      projection_parameter(self, config, index, part.width)
      for index, part in enumerate(parts)
    )

  def __call__(self, tokens: shapes.Tokens) -> shapes.Hidden:
    """Vectors scaled by sqrt(D), before dropout."""
    dtype = jnp.dtype(self.config.dtype)
    vectors = embed(tokens, self.tables, self.projections, dtype=dtype)
    return vectors * jnp.asarray(math.sqrt(self.config.model_dim), dtype)


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
    # Without it XLA first adds the gradient of the rows to that of a softmax
    # with the same table, and gathers all of a split one to do so
    # (docs/tpu.md).
    apart = jax.lax.optimization_barrier(table)
    rows = apart[jnp.where(inside, local, 0)].astype(dtype)
    vectors = project(rows, projection, transpose=False)
    parts.append(jnp.where(inside[..., None], vectors, 0))
    start += table.shape[0]
  return functools.reduce(jnp.add, parts)


def project(
  vectors: jax.Array, projection: jax.Array | None, *, transpose: bool
) -> jax.Array:
  """Multiplies by a projection [E_c, D] or its transpose, if there is one."""
  if projection is None:
    return vectors
  projection = projection.astype(vectors.dtype)
  return vectors @ (projection.T if transpose else projection)


def projection_parameter(
  module: Any, config: schema.ModelConfig, index: int, width: int
) -> jax.Array | None:
  """A cluster's projection [E_c, D], or None if it has none.

  Args:
    module: owner of the parameter.
    config: of the model.
    index: of the cluster.
    width: E_c.
  """
  equal = width == config.model_dim
  if equal and (config.div_val == 1 or not config.project_equal_width):
    return None
  init = nn.initializers.normal(config.projection_init_std)
  shape = (width, config.model_dim)
  return module.param(f"projection_{index}", init, shape, jnp.float32)
