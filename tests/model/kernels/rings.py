"""Arguments of attention over a ring, and its definition in float64."""

import jax.numpy as jnp
import numpy as np

from transformer_xl.model import scores
from transformer_xl.model.kernels import xla_ring

LANES, HEADS, WIDTH = 2, 4, 16
SHARED_HEADS = 2  # With "shared keys" a ring has as many, for all of HEADS.


def arguments(
  segment_len: int, slots: int, *, terms: str, slot: int
) -> xla_ring.Inputs:
  """What attention over a ring is computed from, with terms of the scores."""
  draw = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(draw.normal(size=shape), jnp.float32)

  ring_heads = SHARED_HEADS if terms == "shared keys" else HEADS
  reach = draw.integers(slots - segment_len + 1, size=(LANES, segment_len))
  inputs = xla_ring.Inputs(
    query=normal(LANES, HEADS, segment_len, WIDTH),
    key=normal(LANES * ring_heads, WIDTH, slots),
    value=normal(LANES * ring_heads, WIDTH, slots),
    reach=jnp.asarray(reach, jnp.int32),
    slot=jnp.int32(slot),
  )
  if terms in ("biased keys", "shared keys"):
    biases = (normal(HEADS, WIDTH), normal(HEADS, WIDTH))
    return inputs._replace(
      position_key=xla_ring.position_keys(normal(slots, HEADS, WIDTH)),
      distance=scores.DistanceTerms(biases=biases),
    )
  if terms == "slopes":
    slopes = jnp.asarray([0.5, 0.0625, 0.25, 0.125])
    return inputs._replace(distance=scores.DistanceTerms(slopes=slopes))
  if terms == "added":
    added = normal(HEADS, slots)
    return inputs._replace(distance=scores.DistanceTerms(added=added))
  return inputs


def defined_values(inputs: xla_ring.Inputs) -> np.ndarray:
  """The values of all queries, one pair of query and slot after the other."""
  query = np.asarray(inputs.query, np.float64)
  key = np.asarray(inputs.key, np.float64)
  value = np.asarray(inputs.value, np.float64)
  lanes, heads, segment_len, width = query.shape
  slots = key.shape[-1]
  ring_heads = len(key) // lanes
  terms = inputs.distance
  biases = np.zeros((2, heads, width))
  if terms.biases is not None:
    biases = np.asarray(terms.biases, np.float64)
  content_bias = biases[0]
  position_bias = biases[1]
  result = np.zeros(query.shape)
  for lane, head, row in np.ndindex(lanes, heads, segment_len):
    own = query[lane, head, row]
    place = lane * ring_heads + head * ring_heads // heads
    scored = {}
    for column in range(slots):
      distance = (int(inputs.slot) + row - column) % slots
      if distance > inputs.reach[lane, row]:
        continue
      score = (own + content_bias[head]) @ key[place, :, column]
      if inputs.position_key is not None:
        once = np.asarray(inputs.position_key.once, np.float64)
        of_distance = once[head, :, slots - 1 - distance]
        score += (own + position_bias[head]) @ of_distance
      score /= np.sqrt(width)
      if terms.slopes is not None:
        score -= float(terms.slopes[head]) * distance
      if terms.added is not None:
        score += float(terms.added[head, slots - 1 - distance])
      scored[column] = score
    weights = np.exp(np.array(list(scored.values())))
    values = value[place][:, list(scored)]
    result[lane, head, row] = values @ weights / weights.sum()
  return result
