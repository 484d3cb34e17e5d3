"""Lengths of training segments, as a function of the step alone.

Varying lengths move the boundaries of segments from epoch to epoch (Merity et
al. 2017, section 4.1). Shapes are static in a compiled program, so there are
only a few lengths, and all segments of a call share one.
"""

import dataclasses

import numpy as np

from transformer_xl.config import schema


@dataclasses.dataclass(frozen=True)
class SegmentLengths:
  """Lengths drawn per call: each round of calls is a random permutation.

  A length that is listed twice occurs twice as often.
  """

  lens: tuple[int, ...]
  segments_per_call: int
  seed: int

  def at(self, step: int) -> int:
    """Returns the length T of the segment at a step."""
    call = step // self.segments_per_call
    round_index, turn = divmod(call, len(self.lens))
    return int(self._order(round_index)[turn])

  def tokens_before(self, step: int) -> int:
    """Returns the number of tokens per lane that precede a step."""
    call, segments = divmod(step, self.segments_per_call)
    round_index, turns = divmod(call, len(self.lens))
    whole = (
      round_index * sum(self.lens) + self._order(round_index)[:turns].sum()
    )
    return int(whole) * self.segments_per_call + segments * self.at(step)

  @property
  def mean(self) -> float:
    """The average length."""
    return sum(self.lens) / len(self.lens)

  def _order(self, round_index: int) -> np.ndarray:
    if len(self.lens) == 1:
      return np.asarray(self.lens)
    bits = np.random.PCG64([self.seed, round_index, len(self.lens)])
    return np.random.Generator(bits).permutation(np.asarray(self.lens))


def of(config: schema.ExperimentConfig) -> SegmentLengths:
  """Returns the segment lengths of a configuration."""
  train = config.train
  lens = train.segment_lens or (train.segment_len,)
  return SegmentLengths(lens, train.segments_per_call, config.seed)
