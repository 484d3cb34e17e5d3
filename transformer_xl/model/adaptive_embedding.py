"""Adaptive input: word vectors that are narrower for rarer words.

Frequent words come first in the vocabulary; `cutoffs` split it into clusters,
and each rarer cluster may use vectors that are `div_val` times narrower
(Baevski & Auli 2019; docs/specification.md, section 11). The first cluster is
the shortlist. The adaptive softmax shares tables and projections.

Shapes: D model width, E_c width and V_c size of cluster c.
"""

import functools
import itertools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import parameters

# Standard deviation of initial projections, in all published programs.
PROJECTION_INIT_STD = 0.01


class Cluster(NamedTuple):
  """One run of consecutive ids."""

  start: int
  stop: int
  width: int  # E_c.

  @property
  def shape(self) -> tuple[int, int]:
    """The shape of the cluster's table, V_c and E_c."""
    return self.stop - self.start, self.width


def clusters(config: schema.ModelConfig) -> tuple[Cluster, ...]:
  """The clusters of a model's vocabulary, shortlist first."""
  bounds = itertools.pairwise((0, *config.cutoffs, config.vocab_size))
  return tuple(
    Cluster(*ends, config.embed_dim // config.div_val**index)
    for index, ends in enumerate(bounds)
  )


class AdaptiveEmbedding(nn.Module):
  """Tables and projections of the adaptive input."""

  config: schema.ModelConfig

  def setup(self) -> None:
    """Draws the parameters."""
    config = self.config
    with_table = clusters(config)
    if config.div_val == 1:  # One table; its clusters share a projection.
      with_table = (Cluster(0, config.vocab_size, config.embed_dim),)
    normal = nn.initializers.normal(config.init_std)
    init = parameters.with_split(normal, "table")
    self.tables = tuple(
      self.param(f"table_{index}", init, cluster.shape, jnp.float32)
      for index, cluster in enumerate(with_table)
    )
    self.projections = tuple(
      projection_parameter(self, index, cluster.width)
      for index, cluster in enumerate(with_table)
    )

  def __call__(self, tokens: shapes.Tokens) -> shapes.Hidden:
    """The tokens' vectors, by default times sqrt(D), before dropout."""
    dtype = jnp.dtype(self.config.dtype)
    start = 0
    by_cluster = []
    for table, projection in zip(self.tables, self.projections, strict=True):
      local = tokens - start
      inside = (local >= 0) & (local < table.shape[0])
      # Without it XLA first adds the gradient of the rows to that of a softmax
      # with the same table, and gathers all of a split one to do so
      # (docs/tpu.md).
      apart = jax.lax.optimization_barrier(table)
      rows = apart[jnp.where(inside, local, 0)].astype(dtype)
      vectors = project(rows, projection, transpose=False)
      by_cluster.append(jnp.where(inside[..., None], vectors, 0))
      start += table.shape[0]
    vectors = functools.reduce(jnp.add, by_cluster)
    if not self.config.scale_embeddings:
      return vectors
    return vectors * jnp.asarray(math.sqrt(self.config.model_dim), dtype)


def project(
  vectors: jax.Array, projection: jax.Array | None, *, transpose: bool
) -> jax.Array:
  """Multiplies by a projection [E_c, D] or its transpose, if there is one."""
  if projection is None:
    return vectors
  projection = projection.astype(vectors.dtype)
  return vectors @ (projection.T if transpose else projection)


def has_projection(config: schema.ModelConfig, width: int) -> bool:
  """Whether vectors of a width, E_c, are projected to the model's."""
  may_project = config.div_val > 1 and config.project_equal_width
  return width != config.model_dim or may_project


def projection_parameter(
  module: nn.Module, index: int, width: int
) -> jax.Array | None:
  """The projection [E_c, D] of cluster `index`; None if it has none.

  It is a parameter of `module`, which has a `config`; `width` is E_c.
  """
  config = module.config
  shape = (width, config.model_dim)
  if not has_projection(config, width):
    return None
  normal = nn.initializers.normal(PROJECTION_INIT_STD)
  init = parameters.with_split(normal, "outputs")
  return module.param(f"projection_{index}", init, shape, jnp.float32)
