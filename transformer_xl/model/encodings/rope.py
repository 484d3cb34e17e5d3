"""Rotary position embedding (Su et al. 2021).

Queries and keys are rotated by angles proportional to their positions, so that
their product depends on the difference of the positions alone. Positions count
back from the newest token of the window: angles are as small as the window
allows, however long the text is. `model.position_scale` scales positions, and
angles with them, so that a longer window than in training has no larger ones
(position interpolation, Chen et al. 2023, equation 4). The ring keeps keys as
they were projected and rotates them when they are read.
"""

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import none


class Rope(none.WithoutDistances):
  """Products of rotated queries and rotated keys."""

  def placed(
    self,
    config: schema.ModelConfig,
    query: shapes.Queries,
    key: shapes.Keys,
  ) -> tuple[shapes.Queries, shapes.Keys]:
    """Both rotated; the last query and the last key are the newest token's."""
    context_len = key.shape[1]
    ages = jnp.arange(context_len - 1, -1, -1, dtype=jnp.int32)
    angles = _angles(config, ages)[None, :, None]
    query_angles = angles[:, context_len - query.shape[1] :]
    return distances.rotated(query, query_angles), distances.rotated(
      key, angles
    )

  def attend_ring(
    self,
    config: schema.ModelConfig,
    query: shapes.RingQueries,
    key: shapes.Ring,
    value: shapes.Ring,
    distance: encoding.DistanceTerms | None,
    **place: jax.Array,
  ) -> shapes.RingQueries:
    """Rotates the step's queries and the keys of all slots.

    `place` is reach [B, T] and slot, a scalar.
    """
    segment_len, num_slots = query.shape[2], key.shape[-1]
    newest = place["slot"] + segment_len - 1
    slots = jnp.arange(num_slots, dtype=jnp.int32)
    angles = _angles(config, (newest - slots) % num_slots)
    key = distances.rotated(key, angles.T[None], axis=1)
    ages = jnp.arange(segment_len - 1, -1, -1, dtype=jnp.int32)
    angles = _angles(config, ages)
    query = distances.rotated(query, angles[None, None])
    return super().attend_ring(config, query, key, value, distance, **place)


def _angles(config, ages) -> jax.Array:
  return distances.rotary_angles(
    ages, config.head_dim, scale=config.position_scale
  )
