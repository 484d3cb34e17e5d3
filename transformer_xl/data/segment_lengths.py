"""Lengths of training segments, as a function of the step alone.

All segments have one length, or each has a length of its own, so that segments
are cut elsewhere in every epoch (Merity et al. 2017, section 4.1). Shapes are
static in a compiled program, so segments of drawn lengths are padded.
"""

import dataclasses
import functools
import math

import numpy as np

from transformer_xl.config import schema

_BLOCK = 4096  # Drawn lengths that are made at once.


@dataclasses.dataclass(frozen=True)
class FixedLength:
  """A length that all segments have."""

  segment_len: int
  is_padded = False

  @property
  def longest(self) -> int:
    """The length of the arrays."""
    return self.segment_len

  @property
  def mean(self) -> float:
    """The average length."""
    return self.segment_len

  def at(self, step: int) -> int:
    """The length of the segment at a step."""
    del step
    return self.segment_len

  def tokens_before(self, step: int) -> int:
    """The number of tokens per lane that precede a step."""
    return step * self.segment_len


@dataclasses.dataclass(frozen=True)
class DrawnLengths:
  """Lengths drawn per segment from a normal distribution, rounded down.

  For one of twenty segments its mean is halved (Merity et al. 2017, section
  4.1). A length is at least 5, and at most three standard deviations above
  the mean, to which segments are padded; the published programs have no upper
  bound.
  """

  segment_len: int
  std: float
  seed: int
  is_padded = True

  @property
  def longest(self) -> int:
    """The length of the arrays: three standard deviations above the mean."""
    return max(5, self.segment_len + math.ceil(3 * self.std))

  @property
  def mean(self) -> float:
    """The average length, but for rounding and bounds."""
    return 0.975 * self.segment_len

  def at(self, step: int) -> int:
    """The length of the segment at a step."""
    block, index = divmod(step, _BLOCK)
    return int(_drawn(self, block)[index])

  def tokens_before(self, step: int) -> int:
    """The number of tokens per lane that precede a step."""
    block, index = divmod(step, _BLOCK)
    earlier = sum(_total(self, before) for before in range(block))
    return earlier + int(_drawn(self, block)[:index].sum())


@functools.cache  # Every read asks for those of all blocks before it.
def _total(lengths: DrawnLengths, block: int) -> int:
  """The tokens in `_BLOCK` segments."""
  return int(_drawn(lengths, block).sum())


@functools.lru_cache(maxsize=8)
def _drawn(lengths: DrawnLengths, block: int) -> np.ndarray:
  """The lengths of `_BLOCK` segments."""
  generator = np.random.Generator(np.random.PCG64([lengths.seed, block]))
  halved = generator.random(_BLOCK) >= 0.95
  means = np.where(halved, lengths.segment_len / 2, lengths.segment_len)
  drawn = np.floor(generator.normal(means, lengths.std)).astype(np.int64)
  return np.clip(drawn, 5, lengths.longest)


Lengths = FixedLength | DrawnLengths


def of(train: schema.TrainConfig, seed: int = 0) -> Lengths:
  """The segment lengths of training.

  The seed decides which lengths are drawn, not the longest or the mean.
  """
  if train.segment_len_std:
    return DrawnLengths(train.segment_len, train.segment_len_std, seed)
  return FixedLength(train.segment_len)


def longest_read(train: schema.TrainConfig) -> int:
  """The most tokens that training reads at a time in a lane."""
  return train.context_len + of(train).longest


def tokens_per_update(train: schema.TrainConfig) -> float:
  """The average number of tokens that an update reads in all lanes."""
  return train.batch_size * train.gradient_segments * of(train).mean
