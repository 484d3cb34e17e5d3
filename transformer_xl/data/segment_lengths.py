"""Lengths of training segments, as a function of the step alone.

Varying lengths move the boundaries of segments from epoch to epoch (Merity et
al. 2017, section 4.1). Shapes are static in a compiled program, so either all
segments of a call share one of a few lengths, or each has a length of its own
and is padded.
"""

import dataclasses
import functools
import math
from typing import Protocol

import numpy as np

from transformer_xl.config import schema

_BLOCK = 4096  # Drawn lengths that are made at once.


class Lengths(Protocol):
  """The length T of each segment, in tokens."""

  @property
  def mean(self) -> float:
    """The average length."""

  @property
  def longest(self) -> int:
    """The most that a segment is padded to."""

  @property
  def is_padded(self) -> bool:
    """Whether segments end in padding without weight."""

  def shape_at(self, step: int) -> int:
    """The length with padding, the same for all steps of a call."""

  def at(self, step: int) -> int:
    """The length of the segment at a step."""

  def tokens_before(self, step: int) -> int:
    """The number of tokens per lane that precede a step."""


@dataclasses.dataclass(frozen=True)
class ListedLengths:
  """Lengths drawn per call: each round of calls is a random permutation.

  A length that is listed twice occurs twice as often.
  """

  lens: tuple[int, ...]
  segments_per_call: int
  seed: int
  is_padded = False

  def at(self, step: int) -> int:
    """The length of the segment at a step."""
    call = step // self.segments_per_call
    round_index, turn = divmod(call, len(self.lens))
    return int(self._order(round_index)[turn])

  shape_at = at

  def tokens_before(self, step: int) -> int:
    """The number of tokens per lane that precede a step."""
    call, segments = divmod(step, self.segments_per_call)
    round_index, turns = divmod(call, len(self.lens))
    whole = (
      round_index * sum(self.lens) + self._order(round_index)[:turns].sum()
    )
    return int(whole) * self.segments_per_call + segments * self.at(step)

  @property
  def longest(self) -> int:
    """The longest of the list."""
    return max(self.lens)

  @property
  def mean(self) -> float:
    """The average length."""
    return sum(self.lens) / len(self.lens)

  def _order(self, round_index: int) -> np.ndarray:
    if len(self.lens) == 1:
      return np.asarray(self.lens)
    bits = np.random.PCG64([self.seed, round_index, len(self.lens)])
    return np.random.Generator(bits).permutation(np.asarray(self.lens))


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
    """Three standard deviations above the mean."""
    return max(5, self.segment_len + math.ceil(3 * self.std))

  @property
  def mean(self) -> float:
    """The average length, but for rounding and bounds."""
    return 0.975 * self.segment_len

  def shape_at(self, step: int) -> int:
    """The length with padding."""
    del step
    return self.longest

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


def of(config: schema.ExperimentConfig) -> Lengths:
  """The segment lengths of a configuration."""
  train = config.train
  if train.segment_len_std:
    return DrawnLengths(train.segment_len, train.segment_len_std, config.seed)
  lens = train.segment_lens or (train.segment_len,)
  segments_per_call = train.segments_per_call * train.gradient_segments
  return ListedLengths(lens, segments_per_call, config.seed)


def tokens_per_update(config: schema.ExperimentConfig) -> float:
  """The average number of tokens that an update reads in all lanes."""
  train = config.train
  return train.batch_size * train.gradient_segments * of(config).mean
