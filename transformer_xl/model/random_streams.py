"""Streams of random numbers that follow from one seed, one for each use."""

import enum

import jax


class Stream(enum.IntEnum):
  """Uses of random numbers. A run depends on the values of its streams."""

  PARAMETERS = 0
  DROPOUT = 1
  TEXT = 2
  VISIBLE_LEN = 3
  ADAPTERS = 4


def key(seed: int | jax.Array, stream: Stream) -> jax.Array:
  """The key of a stream of the seed."""
  return jax.random.fold_in(jax.random.key(seed), stream)
