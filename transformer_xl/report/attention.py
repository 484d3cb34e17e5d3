"""Attention in few bytes: the most attended keys and a profile by distance.

Shapes: T queries, N layers, H heads, K keys, C keys that are kept, D bins of
distance.
"""

import base64
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.evaluation import attention_use
from transformer_xl.workdir import metrics_log

NUM_KEYS = 16  # That are kept for each head and query.
MOST_BYTES = 1_800_000  # Packed arrays, before base64 adds a third.


class Attention(NamedTuple):
  """Attention of some queries; distances are from the query to the key."""

  weights: jt.Float[shapes.Array, "T N H C"]  # The largest, descending.
  distances: jt.Int[shapes.Array, "T N H C"]
  terms: jt.Float[shapes.Array, "T 4 N H C"]  # Less their mean over all keys.
  profile: jt.Float[shapes.Array, "T N H D"]  # All weights, in `bins`.
  on_memory: jt.Float[shapes.Array, "T N H"]  # Share of all weights.


def bins(most: int) -> list[int]:
  """The first distance of each bin: 0, 1, 2, 4, 8, ... up to `most`."""
  return [0, *(2**n for n in range(most.bit_length()))]


def summary(
  segment: attention_use.InspectedSegment, starts: tuple[int, ...]
) -> Attention:
  """Keeps what a page shows of a segment that one lane has read.

  The bins begin at the distances `starts`.
  """
  weights = segment.weights[:, 0]  # [N, H, T, K]
  num_queries, num_keys = weights.shape[-2:]
  mem_len = num_keys - num_queries
  query = jnp.arange(num_queries)[:, None]
  key = jnp.arange(num_keys)[None]
  distances = jnp.maximum(mem_len + query - key, 0)  # Masked keys get 0.
  largest = jnp.argsort(-weights, axis=-1)[..., :NUM_KEYS]

  def kept(values: jax.Array) -> jax.Array:
    values = jnp.broadcast_to(values, weights.shape)
    return jnp.take_along_axis(values, largest, axis=-1)

  def centred(term: jax.Array) -> jax.Array:
    # A constant on the scores of a query changes nothing.
    mean = jnp.mean(term, axis=-1, keepdims=True, where=weights > 0)
    return term - mean

  index = jnp.searchsorted(jnp.array(starts), distances, side="right") - 1
  members = jax.nn.one_hot(index, len(starts))
  terms = jnp.stack([kept(centred(term[:, 0])) for term in segment.terms])
  profile = jnp.einsum("nhtk,tkd->tnhd", weights, members)
  on_memory = jnp.sum(weights[..., :mem_len], axis=-1)
  return Attention(
    weights=jnp.moveaxis(kept(weights), 2, 0),
    distances=jnp.moveaxis(kept(distances[None, None]), 2, 0),
    terms=jnp.moveaxis(terms, 3, 0),
    profile=profile,
    on_memory=jnp.moveaxis(on_memory, 2, 0),
  )


def packed(attention: Attention, starts: tuple[int, ...]) -> metrics_log.Json:
  """The newest queries, as many as fit, as JSON with arrays in base64.

  Weights, shares and the profile are 255 times their square roots; terms are
  127 times their value, relative to `term_scales` of their term and head.
  """
  each = sum(
    array[0].size * np.dtype(kind).itemsize
    for array, kind in zip(attention, _TYPES, strict=True)
  )
  count = min(len(attention.weights), MOST_BYTES // each)
  newest = jax.tree.map(
    lambda array: np.asarray(array[len(array) - count :]), attention
  )
  scales = np.abs(newest.terms).max(axis=(0, -1), initial=1e-9)  # [4, N, H]
  values = newest._replace(
    weights=_roots(newest.weights),
    terms=127 * newest.terms / scales[..., None],
    profile=_roots(newest.profile),
    on_memory=_roots(newest.on_memory),
  )
  _, num_layers, num_heads, num_keys = newest.weights.shape
  has_term = np.abs(newest.terms).max((0, 2, 3, 4), initial=0) > 0
  arrays = zip(Attention._fields, values, _TYPES, strict=True)
  return {
    "num_queries": count,
    "num_layers": num_layers,
    "num_heads": num_heads,
    "num_keys": num_keys,
    "bin_starts": list(starts),
    "term_scales": scales.round(4).tolist(),
    # Terms that the encoding does not have are 0 everywhere.
    "has_term": has_term.tolist(),
    **{name: _base64(array, kind) for name, array, kind in arrays},
  }


_TYPES = ("u1", "<u2", "i1", "u1", "u1")  # Fields of `Attention`.


def _roots(values: np.ndarray) -> np.ndarray:
  return 255 * np.sqrt(np.clip(values, 0, 1))


def _base64(values: np.ndarray, kind: str) -> str:
  return base64.b64encode(np.rint(values).astype(kind).tobytes()).decode()
