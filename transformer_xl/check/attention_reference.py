"""Attention and its gradient in float64 NumPy, from the equations.

It shares no code with what it checks. Paper, section 3.3; the terms of other
encodings are in docs/specification.md, section 5.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

import numpy as np

Arrays = dict[str, np.ndarray]
_STRIDE = 0x9E3779B9  # 2^32 divided by the golden ratio, made odd.


def attention(
  inputs: Arrays,
  output_gradient: np.ndarray,
  *,
  kept: np.ndarray | None = None,
  rate: float = 0.0,
) -> Arrays:
  """The values of attention, and the gradients of all inputs that have one.

  Args:
    inputs: query, key, value and reach, and what an encoding adds: position_key
      of the distances K-1 down to 0, content_bias, position_bias and slopes, as
      `attention.Inputs` has them.
    output_gradient: the gradient of the values, [B, T, H, Dh].
    kept: which weights dropout keeps, [B, H, T, K]; None for all.
    rate: of dropout.

  Returns:
    The values by the name "values", and the gradient of each input by the name
    of the input.
  """
  query, key, value = (inputs[name] for name in ("query", "key", "value"))
  _, num_queries, _, width = query.shape
  num_keys = key.shape[1]
  position_key = inputs.get("position_key")
  content = query + inputs.get("content_bias", 0.0)
  position = query + inputs.get("position_bias", 0.0)

  # The score of query t and key k.
  scores = np.einsum("bthd,bkhd->bhtk", content, key)
  if position_key is not None:
    by_distance = np.einsum("bthd,jhd->bhtj", position, position_key)
    for t in range(num_queries):
      first = num_queries - 1 - t  # The row of the distance to key 0.
      scores[:, :, t, : num_keys - first] += by_distance[:, :, t, first:]
  scores /= np.sqrt(width)
  newest = np.arange(num_keys - num_queries, num_keys)
  distance = newest[:, None] - np.arange(num_keys)
  if "slopes" in inputs:
    scores -= inputs["slopes"][:, None, None] * distance
  visible = (distance >= 0) & (distance <= inputs["reach"][:, :, None])
  scores = np.where(visible[:, None], scores, -np.inf)
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  factor = np.ones(()) if kept is None else kept / (1 - rate)
  values = np.einsum("bhtk,bkhd->bthd", weights * factor, value)

  # The gradient, from the values back to the inputs.
  of_weights = np.einsum("bthd,bkhd->bhtk", output_gradient, value) * factor
  mean = (weights * of_weights).sum(axis=-1, keepdims=True)
  of_scores = weights * (of_weights - mean) / np.sqrt(width)
  of_content = np.einsum("bhtk,bkhd->bthd", of_scores, key)
  of_position = np.zeros_like(query)
  result = {
    "values": values,
    "key": np.einsum("bhtk,bthd->bkhd", of_scores, content),
    "value": np.einsum("bhtk,bthd->bkhd", weights * factor, output_gradient),
  }
  if position_key is not None:
    of_distance = np.zeros_like(by_distance)
    for t in range(num_queries):
      first = num_queries - 1 - t
      of_distance[:, :, t, first:] = of_scores[:, :, t, : num_keys - first]
    of_position = np.einsum("bhtj,jhd->bthd", of_distance, position_key)
    result["position_key"] = np.einsum("bhtj,bthd->jhd", of_distance, position)
  result["query"] = of_content + of_position
  if "content_bias" in inputs:
    result["content_bias"] = of_content.sum(axis=(0, 1))
    result["position_bias"] = of_position.sum(axis=(0, 1))
  return result


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
