"""Parameters of a model whose vocabulary gets more symbols.

The new symbols have the ids after the old ones, so they join the last cluster,
or the whole vocabulary if there are no clusters. Formulas and what happens to
the probabilities of old symbols: docs/specification.md, section 12.
"""

import math

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema

# The new symbols together are at most this likely, relative to the old symbols
# of their cluster.
ODDS = 1e-3


def add_symbols(
  params: shapes.PyTree, config: schema.ModelConfig, count: int
) -> shapes.PyTree:
  """Adds `count` symbols to the parameters of the model `config`.

  Old rows and biases keep their values. A new symbol's vectors are the means of
  those in its cluster. Its bias is the cluster's mean bias plus
  log(ODDS V_c / count) for V_c old symbols in the cluster; then, by Jensen's
  inequality, `ODDS` holds after every text.
  """
  first = (0, *config.cutoffs)[-1]  # Lowest id of the last cluster.
  last = len(config.cutoffs)
  num_old = config.vocab_size - first
  softmax = dict(params["softmax"])
  embedding = dict(params["embedding"])
  shift = math.log(ODDS * num_old / count)
  softmax["bias"] = _with_means(softmax["bias"], first, count, shift=shift)
  if not config.tie_weights:
    name = f"kernel_{last}"
    softmax[name] = _with_means(softmax[name], 0, count)
  if config.div_val == 1:  # All clusters share one table.
    name = "table_0"
    row = first
  else:
    name = f"table_{last}"
    row = 0
  embedding[name] = _with_means(embedding[name], row, count)
  return {**params, "softmax": softmax, "embedding": embedding}


def _with_means(
  rows: jax.Array, first: int, count: int, *, shift: float = 0.0
) -> jax.Array:
  """Appends `count` times the mean of the rows from `first` on, shifted.

  The rows are concatenated, because with jaxlib 0.10.2 on CPUs an update of a
  slice of a sharded array also changes the last row of each shard.
  """
  mean = jnp.mean(rows[first:], axis=0, keepdims=True) + shift
  return jnp.concatenate([rows, jnp.repeat(mean, count, axis=0)])
