"""The four terms of attention scores, from what the layers multiply.

Shapes: as in `shapes`; all layers of a model are in front, N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import attention
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import encoding


class Terms(NamedTuple):
  """The four scaled terms of a score (paper, section 3.3).

  Terms that the encoding does not have are 0.
  """

  content: jt.Float[shapes.Array, "N B H T K"]  # (a) query and key.
  distance: jt.Float[shapes.Array, "N B H T K"]  # (b) query and distance.
  content_bias: jt.Float[shapes.Array, "N B H T K"]  # (c) u and key.
  distance_bias: jt.Float[shapes.Array, "N B H T K"]  # (d) v and distance.


class Reading(NamedTuple):
  """A segment that was read, with its attention."""

  memory: memory_lib.Memory  # For the next segment.
  nll: shapes.Losses
  terms: Terms
  weights: jt.Float[shapes.Array, "N B H T K"]  # Of each key for each query.


def read_segment(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  inputs: shapes.Tokens,
  targets: shapes.Tokens,
  *,
  model: transformer_xl.TransformerXL,
) -> Reading:
  """Reads a segment and shows its attention."""
  bound = model.bind({"params": params})
  hidden, after, factors = bound.inspect(inputs, memory)
  nll = adaptive_softmax.nll(hidden, targets, bound.head())
  reach = memory_lib.reach(
    memory,
    jnp.zeros(inputs.shape, bool),
    same_length=model.same_length,
    window=model.config.same_length_window,
  )
  terms = jax.lax.map(_layer_terms, factors)
  total = terms.content + terms.distance
  total += terms.content_bias + terms.distance_bias
  weights = jax.vmap(attention.visible_softmax, in_axes=(0, None))(total, reach)
  return Reading(after, nll, terms, weights)


def _layer_terms(factors: encoding.ScoreFactors) -> Terms:
  """The terms of one layer, [B, H, T, K]."""
  query, key, distance, biases = jax.tree.map(jnp.float32, factors)
  content = jnp.einsum("bthd,bkhd->bhtk", query, key)
  terms = Terms(content, *[jnp.zeros_like(content)] * 3)
  if distance is not None:
    scores = jnp.einsum("bthd,khd->bhtk", query, distance)
    terms = terms._replace(distance=attention.rel_shift(scores))
  if distance is not None and biases is not None:
    u_key = jnp.einsum("hd,bkhd->bhk", biases[0], key)[:, :, None]
    v_distance = jnp.einsum("hd,khd->hk", biases[1], distance)[None, :, None]
    u_key, v_distance = (
      jnp.broadcast_to(term, content.shape) for term in (u_key, v_distance)
    )
    terms = terms._replace(
      content_bias=u_key, distance_bias=attention.rel_shift(v_distance)
    )
  scale = query.shape[-1] ** -0.5
  return jax.tree.map(lambda term: term * scale, terms)
