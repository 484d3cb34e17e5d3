"""Attention and its gradient in float64 NumPy, query after query.

Paper, section 3.3; the terms of other encodings are in docs/specification.md,
section 5.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

from collections.abc import Mapping

import numpy as np

Arrays = dict[str, np.ndarray]
_STRIDE = 0x9E3779B9  # 2^32 divided by the golden ratio, made odd.


def attention(
  inputs: Mapping[str, np.ndarray],
  output_gradient: np.ndarray | None = None,
  *,
  kept: np.ndarray | None = None,
  rate: float = 0.0,
) -> Arrays:
  """The values of attention, and the gradients of all inputs that have one.

  Args:
    inputs: query [B, T, H, Dh], key and value [B, K, H, Dh], and reach [B, T],
      the largest distance that a query sees. An encoding adds position_key [K,
      H, Dh] of the distances K-1 down to 0, content_bias and position_bias [H,
      Dh], slopes [H], and what is added to the scores of these distances, added
      [H, K].
    output_gradient: the gradient of the values, [B, T, H, Dh]; None for values
      alone.
    kept: which weights dropout keeps, [B, H, T, K]; None for all.
    rate: of dropout.

  Returns:
    The values by the name "values", and the gradient of each input by the name
    of the input.
  """
  query, key, value = (inputs[name] for name in ("query", "key", "value"))
  lanes, num_queries, heads, width = query.shape
  num_keys = key.shape[1]
  none = np.zeros((heads, width))
  content = query + inputs.get("content_bias", none)
  position = query + inputs.get("position_bias", none)
  position_key = inputs.get("position_key", np.zeros((num_keys, *none.shape)))
  slopes = inputs.get("slopes", np.zeros(heads))
  added = inputs.get("added", np.zeros((heads, num_keys)))
  factor = np.ones((lanes, heads, num_queries, num_keys))
  if kept is not None:
    factor = kept / (1 - rate)

  values = np.zeros(query.shape)
  of_content, of_position = np.zeros(query.shape), np.zeros(query.shape)
  of_key, of_value = np.zeros(key.shape), np.zeros(value.shape)
  of_position_key = np.zeros(position_key.shape)
  of_added = np.zeros(added.shape)
  for t in range(num_queries):
    # A query sees keys up to its own, which has the distance 0.
    end = num_keys - num_queries + t + 1
    keys, by_distance = key[:, :end], position_key[num_keys - end :]
    distance = np.arange(end)[::-1]
    scores = np.einsum("bhd,bkhd->bhk", content[:, t], keys)
    scores += np.einsum("bhd,khd->bhk", position[:, t], by_distance)
    scores = scores / np.sqrt(width) - slopes[:, None] * distance
    scores += added[:, num_keys - end :]
    visible = distance <= inputs["reach"][:, t, None]
    scores = np.where(visible[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    dropped = weights * factor[:, :, t, :end]
    values[:, t] = np.einsum("bhk,bkhd->bhd", dropped, value[:, :end])
    if output_gradient is None:
      continue

    # The gradient, from the values back to the inputs.
    of_values = output_gradient[:, t]
    of_value[:, :end] += np.einsum("bhk,bhd->bkhd", dropped, of_values)
    of_weights = np.einsum("bhd,bkhd->bhk", of_values, value[:, :end])
    of_weights *= factor[:, :, t, :end]
    mean = (weights * of_weights).sum(axis=-1, keepdims=True)
    of_scores = weights * (of_weights - mean)
    of_added[:, num_keys - end :] += of_scores.sum(axis=0)
    of_scores = of_scores / np.sqrt(width)  # Of the products.
    of_content[:, t] = np.einsum("bhk,bkhd->bhd", of_scores, keys)
    of_position[:, t] = np.einsum("bhk,khd->bhd", of_scores, by_distance)
    of_key[:, :end] += np.einsum("bhk,bhd->bkhd", of_scores, content[:, t])
    of_position_key[num_keys - end :] += np.einsum(
      "bhk,bhd->khd", of_scores, position[:, t]
    )

  if output_gradient is None:
    return {"values": values}
  gradients = {
    "query": of_content + of_position,
    "key": of_key,
    "value": of_value,
    "position_key": of_position_key,
    "content_bias": of_content.sum(axis=(0, 1)),
    "position_bias": of_position.sum(axis=(0, 1)),
    "added": of_added,
  }
  given = {name: gradients[name] for name in gradients if name in inputs}
  return {"values": values, **given}


def kept_weights(
  seeds: np.ndarray, num_queries: int, num_keys: int, *, rate: float
) -> np.ndarray:
  """True where dropout keeps a weight, [B, H, T, K].

  It follows from a hash of the seed [B, H] of lane and head, the row and the
  column (docs/specification.md, section 10).
  """
  seed = seeds.astype(np.int64)[:, :, None, None]
  row = np.arange(num_queries, dtype=np.int64)[:, None]
  column = np.arange(num_keys, dtype=np.int64)
  start = _mixed(seed + row * _STRIDE)
  bits = _mixed(start ^ (column * _STRIDE))
  signed = bits.astype(np.uint32).view(np.int32)
  return signed >= int(rate * 2**32) - 2**31


def _mixed(bits: np.ndarray) -> np.ndarray:
  """Spreads each of 32 bits over the higher ones (`lowbias32`, shortened)."""
  bits = bits.astype(np.uint64) & np.uint64(0xFFFFFFFF)
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
    bits ^= bits >> np.uint64(shift)
    bits = (bits * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
  return bits.astype(np.int64)
