"""Streams of segments that are pure functions of the step.

Lanes are cut out of a token file at run time, so the same files serve any batch
size and any number of devices, and a position in the data is a step and nothing
else.

Of N tokens there are N-1 pairs (token, next token); pair p has the input p and
the target p+1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file


@dataclasses.dataclass(frozen=True)
class TrainStream:
  """Endless lanes through one split, each starting where it would be cut.

  Lane b starts at pair b * L, L = pairs // lanes, and reads on without end:
  into the text of the next lane, and from the last pair to the first. No token
  is dropped, no lane ever jumps, and each epoch cuts segments elsewhere. With
  `rotate` all lanes jump by one random offset at each epoch instead.
  """

  file: token_file.TokenFile
  num_lanes: int
  segment_len: int
  resets: str  # "documents", "wrap": where the corpus starts over, or "never".
  rotate: bool
  seed: int
  # If they take turns; then no lane may jump.
  lengths: segment_lengths.SegmentLengths | None = None

  def __post_init__(self):
    longest = max(self._lengths.lens)
    if self.pairs // self.num_lanes < longest:
      lanes = self.pairs // longest
      raise errors.UserError(
        f"{self.pairs + 1} tokens do not fill one segment of "
        f"{longest} in each of {self.num_lanes} lanes; use at most "
        f"{lanes} lanes or shorter segments."
      )

  @property
  def pairs(self) -> int:
    """How many (input, target) pairs the split has."""
    return len(self.file.tokens) - 1

  @property
  def steps_per_epoch(self) -> int:
    """Segments until each lane arrives where the next one started."""
    return math.ceil(self.pairs // self.num_lanes / self.segment_len)

  def length_at(self, step: int) -> int:
    """T of the segments that are read from this step on."""
    return self._lengths.at(step)

  @property
  def _lengths(self) -> segment_lengths.SegmentLengths:
    return self.lengths or segment_lengths.SegmentLengths(
      (self.segment_len,), 1, self.seed
    )

  def read(self, step: int, count: int, lanes: slice) -> segment.Segment:
    """The segments of steps [step, step + count) for some lanes.

    Returns:
      NumPy arrays [count, lanes, T]; with `lengths`, all of one call's length.
    """
    steps = np.arange(step, step + count)[:, None]
    starts = np.arange(self.num_lanes)[lanes] * (self.pairs // self.num_lanes)
    length = self.length_at(step)
    if self.rotate:
      epoch, steps = np.divmod(steps, self.steps_per_epoch)
      starts = starts + self._offsets(epoch) + steps * length
    else:
      starts = starts + self._lengths.tokens_before(step)
      starts = starts + (steps - step) * length
    starts = starts % self.pairs  # [count, lanes]
    inputs, targets = _pairs(self.file, starts, length, np.mod)
    resets = self._resets(starts, length)
    if self.rotate:
      resets[:, :, 0] |= steps == 0
    weights = np.ones(inputs.shape, np.float32)
    return _segment(inputs, targets, weights, resets)

  def _offsets(self, epochs: np.ndarray) -> np.ndarray:
    def offset(epoch: int) -> int:
      if epoch == 0:
        return 0
      generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
      return int(generator.integers(self.pairs))

    return np.vectorize(offset, otypes=[np.int64])(epochs)

  def _resets(self, starts: np.ndarray, length: int) -> np.ndarray:
    if self.resets == "never":
      return np.zeros((*starts.shape, length), bool)
    documents = _documents(self.file, self.resets)
    # What lies past the last pair is the start of the text again.
    around = _document_starts(documents, starts - self.pairs, length)
    return around | _document_starts(documents, starts, length)


@dataclasses.dataclass(frozen=True)
class EvalStream:
  """Every pair of one split exactly once.

  The pairs are cut into one run of whole segments for each lane, so that
  segments begin at the same tokens whatever the number of lanes. A lane may
  first read the `warmup_len` tokens left of its run, rounded up to segments;
  they are not counted. What fills up the end of the last run is not counted
  either, nor read by anything that is.
  """

  file: token_file.TokenFile
  num_lanes: int
  segment_len: int
  warmup_len: int
  resets: str  # As in TrainStream; the start of the text always resets.

  @property
  def num_steps(self) -> int:
    """Segments until all is read."""
    return self._warmup_steps + self._run // self.segment_len

  def length_at(self, step: int) -> int:
    """As TrainStream's; here all are alike."""
    del step
    return self.segment_len

  @property
  def _warmup_steps(self) -> int:
    return math.ceil(self.warmup_len / self.segment_len)

  @property
  def _run(self) -> int:
    pairs, step = len(self.file.tokens) - 1, self.num_lanes * self.segment_len
    return math.ceil(pairs / step) * self.segment_len

  def read(self, step: int, count: int, lanes: slice) -> segment.Segment:
    """As TrainStream.read; steps after the last have no weight."""
    steps, starts = self._starts(step, count)
    starts = starts[:, lanes]
    inputs, targets = _pairs(self.file, starts, self.segment_len, _clip)
    documents = _documents(self.file, self.resets)
    resets = _document_starts(documents, starts, self.segment_len)
    in_run = (steps >= 0) & (steps * self.segment_len < self._run)
    counted = in_run[:, :, None] & self.is_text(step, count)[:, lanes]
    return _segment(inputs, targets, counted.astype(np.float32), resets)

  def is_text(self, step: int, count: int) -> np.ndarray:
    """Which pairs are of the split, counted or not, [count, B, T].

    The others are before its start, where lanes warm up, or past its end.
    """
    _, starts = self._starts(step, count)
    position = starts[:, :, None] + np.arange(self.segment_len)
    return (position >= 0) & (position < len(self.file.tokens) - 1)

  def _starts(self, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps since warming up, [count, 1], and first pairs, [count, B]."""
    steps = np.arange(step, step + count)[:, None] - self._warmup_steps
    runs = np.arange(self.num_lanes) * self._run
    return steps, runs + steps * self.segment_len


def _segment(*fields: Any) -> segment.Segment:
  """NumPy's arrays where the types say JAX's."""
  return segment.Segment(*fields)


def _clip(position: np.ndarray, pairs: int) -> np.ndarray:
  return np.clip(position, 0, pairs - 1)


def _pairs(
  file: token_file.TokenFile,
  starts: np.ndarray,
  segment_len: int,
  bring_inside: Callable[[np.ndarray, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Inputs and targets [count, lanes, T] of the segments at some pairs."""
  shape, pairs = (*starts.shape, segment_len), len(file.tokens) - 1
  inputs, targets = np.empty(shape, np.int32), np.empty(shape, np.int32)
  for index, start in np.ndenumerate(starts):
    stop = start + segment_len
    if start >= 0 and stop <= pairs:
      inputs[index] = file.tokens[start:stop]
      targets[index] = file.tokens[start + 1 : stop + 1]
    else:
      position = bring_inside(np.arange(start, stop), pairs)
      inputs[index] = file.tokens[position]
      targets[index] = file.tokens[position + 1]
  return inputs, targets


def _documents(file: token_file.TokenFile, resets: str) -> np.ndarray:
  """Where memory is reset: at every document, or at the text's start."""
  return file.documents if resets == "documents" else np.zeros(1, np.int64)


def _document_starts(
  documents: np.ndarray, starts: np.ndarray, segment_len: int
) -> np.ndarray:
  """Where documents start in the segments, [count, lanes, T]."""
  result = np.zeros((*starts.shape, segment_len), bool)
  first = np.searchsorted(documents, starts)
  last = np.searchsorted(documents, starts + segment_len)
  for index in zip(*np.nonzero(last > first), strict=True):
    inside = documents[first[index] : last[index]] - starts[index]
    result[(*index, inside)] = True
  return result


def device_segments(
  stream: TrainStream | EvalStream,
  step: int,
  count: int,
  sharding: jax.sharding.NamedSharding,
) -> segment.Segment:
  """Global arrays [count, B, T] of which each process reads its lanes only."""
  shape = (count, stream.num_lanes, stream.length_at(step))
  cache: dict[tuple, segment.Segment] = {}

  def read(lanes: slice) -> segment.Segment:
    bounds = lanes.indices(stream.num_lanes)
    if bounds not in cache:
      cache[bounds] = stream.read(step, count, slice(*bounds))
    return cache[bounds]

  def array(name: str) -> jax.Array:
    def part(index: Any) -> np.ndarray:
      return getattr(read(index[1]), name)

    return jax.make_array_from_callback(shape, sharding, part)

  return segment.Segment(*map(array, segment.Segment._fields))


def reset_rule(config: schema.ExperimentConfig) -> str:
  """Where streams reset memory, see `TrainStream.resets`."""
  if config.data.reset_at_documents:
    return "documents"
  return "never" if config.model.memory_start == "zeros" else "wrap"
