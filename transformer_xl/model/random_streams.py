"""Streams of random numbers that follow from one seed, one for each use."""

import enum

import jax


class Stream(enum.IntEnum):
  """What random numbers are for. Runs depend on the numbers of the streams."""

  PARAMETERS = 0
  DROPOUT = 1
  TEXT = 2
  VISIBLE_LEN = 3
  ADAPTERS = 4


def key(seed: int | jax.Array, stream: Stream) -> jax.Array:
  """The key of a stream of the seed."""
  return jax.random.fold_in(jax.random.key(seed), stream)
