"""The four terms of attention scores, computed again from a model's parameters.

Shapes: as in `shapes`; a model's layers are in front, N.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import attention
from transformer_xl.model import layers
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import distances


class Terms(NamedTuple):
  """The four terms of a score (paper, section 3.3), with its factor.

  Where the encoding has no such term, it is 0.
  """

  content: jt.Float[shapes.Array, "N B H T K"]  # (a) query and key.
  distance: jt.Float[shapes.Array, "N B H T K"]  # (b) query and distance.
  content_bias: jt.Float[shapes.Array, "N B H T K"]  # (c) u and key.
  distance_bias: jt.Float[shapes.Array, "N B H T K"]  # (d) v and distance.


class Reading(NamedTuple):
  """What is known of one segment after it was read."""

  memory: memory_lib.Memory  # For the next.
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
  """Reads a segment no longer than the memory, and shows its attention."""
  segment_len = inputs.shape[1]
  resets = jnp.zeros(inputs.shape, bool)
  read: Any = model.apply(
    {"params": params}, inputs, targets, memory, resets, method="nll"
  )
  nll, after = read
  context = jnp.concatenate(
    [memory.hiddens, after.hiddens[:, :, -segment_len:]], axis=2
  )
  reach = memory_lib.reach(
    memory,
    resets,
    same_length=model.same_length,
    window=model.config.same_length_window,
  )
  score = functools.partial(
    _layer_terms, params, segment_len=segment_len, model=model
  )
  terms = jax.lax.map(lambda layer: score(*layer), (params["layers"], context))
  total = terms.content + terms.distance
  total += terms.content_bias + terms.distance_bias
  weights = jax.vmap(attention.visible_softmax, in_axes=(0, None))(total, reach)
  return Reading(after, nll, terms, weights)


def _layer_terms(params, layer, context, *, segment_len, model) -> Terms:
  """Of one layer, [B, H, T, K]."""
  config = model.config
  own = layer["attention"]
  if config.pre_norm:
    norm = {"params": layer["attention_norm"]}
    context = layers.LayerNorm(config).apply(norm, context)

  def heads(rows, kernel):
    projected = rows @ kernel.astype(config.dtype)
    shape = (*rows.shape[:-1], config.num_heads, config.head_dim)
    return projected.reshape(shape).astype(jnp.float32)

  query = heads(context[:, -segment_len:], own["query"])
  key = heads(context, own["key"])
  content = jnp.einsum("bthd,bkhd->bhtk", query, key)
  zeros = jnp.zeros_like(content)
  terms = Terms(content, zeros, zeros, zeros)
  context_len = context.shape[1]
  if config.encoding == "relative":
    encodings = distances.position_encodings(
      context_len, config.model_dim, clamp_len=model.clamp_len
    )
    distance = heads(encodings.astype(config.dtype), own["position"])
    owner = own if config.untie_biases else params
    u, v = owner["content_bias"], owner["position_bias"]
    from_key = jnp.einsum("hd,bkhd->bhk", u, key)[:, :, None]
    from_distance = jnp.einsum("hd,khd->hk", v, distance)[None, :, None]
    terms = terms._replace(
      content_bias=jnp.broadcast_to(from_key, content.shape),
      distance_bias=attention.rel_shift(
        jnp.broadcast_to(from_distance, content.shape)
      ),
    )
  elif config.encoding == "shaw":
    rows = distances.clipped_rows(own["distances"], context_len)
    distance = rows.reshape(context_len, config.num_heads, config.head_dim)
  if config.encoding not in layers.ABSOLUTE:
    scores = jnp.einsum("bthd,khd->bhtk", query, distance)
    terms = terms._replace(distance=attention.rel_shift(scores))
  return jax.tree.map(lambda term: term * config.head_dim**-0.5, terms)
