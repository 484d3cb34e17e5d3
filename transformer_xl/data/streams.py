"""Streams of segments that are pure functions of the step.

A step of a stream is one segment of every lane; an update of training takes
`train.gradient_segments` of them. Lanes are cut out of a token file at run
time, so the same files serve any batch size and any number of devices, and a
step alone determines a position in the data.

N tokens make N-1 pairs (token, next token): pair p has token p as its input and
token p+1 as its target.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file


@dataclasses.dataclass(frozen=True)
class TrainStream:
  """Endless lanes through one split.

  Lane b starts at pair b * L, where L = pairs // lanes, and never ends: it
  continues into the text of the next lane, and from the last pair to the first.
  No token is dropped, no lane jumps, and segment boundaries differ from epoch
  to epoch. Each segment is read after the `context_len` tokens before it, which
  have no targets; nothing before the start of the text is visible.
  """

  file: token_file.TokenFile
  num_lanes: int
  segment_len: int
  resets: str  # "documents", "wrap" (where the text starts over) or "never".
  lengths: segment_lengths.Lengths | None = None  # Other than `segment_len`.
  context_len: int = 0
  targets: str = "all"  # Or "answers", the only ones with a weight.

  def __post_init__(self) -> None:
    longest = self._lengths.longest
    if self.pairs // self.num_lanes < longest:
      lanes = self.pairs // longest
      fix = f"use at most {lanes} lanes or shorter segments."
      if not lanes:
        fix = "use more text, or fewer lanes of shorter segments."
      raise errors.UserError(
        f"{self.pairs + 1} tokens do not fill one segment of "
        f"{longest} in each of {self.num_lanes} lanes; {fix}"
      )
    if self.targets == "answers":
      _pairs_with_answers(self.file)  # Raises an error if there are none.

  @property
  def pairs(self) -> int:
    """Number of (input, target) pairs in the split."""
    return len(self.file.tokens) - 1

  def num_tokens(self, step: int, count: int) -> int:
    """Targets in the segments of steps [step, step + count)."""
    before = self._lengths.tokens_before
    return self.num_lanes * (before(step + count) - before(step))

  @property
  def _lengths(self) -> segment_lengths.Lengths:
    return self.lengths or segment_lengths.FixedLength(self.segment_len)

  def read(
    self, step: int, count: int, lanes: slice
  ) -> segment.Segment[np.ndarray]:
    """Reads the segments of steps [step, step + count) for some lanes.

    Returns:
      Arrays [count, lanes, T], with weights only if segments are padded or
      targets are answers: otherwise every target counts.
    """
    steps = np.arange(step, step + count)[:, None]
    starts = np.arange(self.num_lanes)[lanes] * (self.pairs // self.num_lanes)
    before = np.vectorize(self._lengths.tokens_before, otypes=[np.int64])
    starts = starts + before(steps)  # [count, lanes]
    starts = (starts - self.context_len) % self.pairs
    length = self.context_len + self._lengths.longest
    inputs, targets = _pairs(self.file, starts, length, np.mod)
    targets = targets[:, :, self.context_len :]
    resets = self._resets(starts, length)
    weights = self._weights(step, targets.shape)
    if self.targets == "answers":
      asked = _pairs_with_answers(self.file)
      positions = starts[:, :, None] + np.arange(self.context_len, length)
      is_asked = asked[positions % self.pairs].astype(np.float32)
      weights = is_asked if weights is None else weights * is_asked
    return segment.Segment(inputs, targets, resets, weights)

  def _weights(self, step: int, shape: tuple[int, ...]) -> np.ndarray | None:
    if not self._lengths.is_padded:
      return None
    lengths = [self._lengths.at(step + index) for index in range(shape[0])]
    is_text = np.arange(shape[2]) < np.array(lengths)[:, None]  # [count, T]
    weights = np.broadcast_to(is_text[:, None], shape)
    return weights.astype(np.float32)

  def _resets(self, starts: np.ndarray, length: int) -> np.ndarray:
    if self.resets == "never":
      return np.zeros((*starts.shape, length), bool)
    documents = _documents(self.file, self.resets)
    resets = np.zeros((*starts.shape, length), bool)
    # Positions past the last pair wrap around to the start of the text, more
    # than once if the text is short.
    for passed in range(0, self.pairs + length, self.pairs):
      resets |= _document_starts(documents, starts - passed, length)
    return resets


@dataclasses.dataclass(frozen=True)
class EvalStream:
  """Every pair of one split exactly once.

  Each lane reads one run of whole segments, so segments begin at the same
  tokens whatever the number of lanes. Before its run, a lane can read the
  `warmup_len` tokens to the left of it, rounded up to whole segments, to fill
  its memory. Neither those tokens nor the padding of the last run have weight,
  and no scored token depends on the padding. Each segment is read after the
  `context_len` tokens before it, as in `TrainStream`.
  """

  file: token_file.TokenFile
  num_lanes: int
  segment_len: int
  warmup_len: int
  resets: str  # As in TrainStream, but the start of the text always resets.
  context_len: int = 0
  targets: str = "all"  # As in TrainStream.

  @property
  def num_steps(self) -> int:
    """Number of segments in which the whole split is read."""
    return self._warmup_steps + self._run // self.segment_len

  @property
  def _warmup_steps(self) -> int:
    return math.ceil(self.warmup_len / self.segment_len)

  @property
  def _run(self) -> int:
    pairs = len(self.file.tokens) - 1
    step = self.num_lanes * self.segment_len
    return math.ceil(pairs / step) * self.segment_len

  def read(
    self, step: int, count: int, lanes: slice
  ) -> segment.Segment[np.ndarray]:
    """Segments [count, lanes, T], with weights: 0 in steps after the last."""
    steps, starts = self._starts(step, count)
    starts = starts[:, lanes] - self.context_len
    length = self.context_len + self.segment_len
    inputs, targets = _pairs(self.file, starts, length, _clip)
    targets = targets[:, :, self.context_len :]
    documents = _documents(self.file, self.resets)
    resets = _document_starts(documents, starts, length)
    in_run = (steps >= 0) & (steps * self.segment_len < self._run)
    counted = in_run[:, :, None] & self.is_text(step, count)[:, lanes]
    if self.targets == "answers":
      asked = _pairs_with_answers(self.file)
      positions = starts[:, :, None] + np.arange(self.context_len, length)
      counted &= asked[_clip(positions, len(asked))]
    weights = counted.astype(np.float32)
    return segment.Segment(inputs, targets, resets, weights)

  def is_text(self, step: int, count: int) -> np.ndarray:
    """True for pairs inside the split, scored or not; [count, B, T].

    Pairs outside lie before its start, where lanes warm up, or past its end.
    """
    _, starts = self._starts(step, count)
    position = starts[:, :, None] + np.arange(self.segment_len)
    return (position >= 0) & (position < len(self.file.tokens) - 1)

  def _starts(self, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps since the warm-up, [count, 1], and first pairs, [count, B]."""
    steps = np.arange(step, step + count)[:, None] - self._warmup_steps
    runs = np.arange(self.num_lanes) * self._run
    return steps, runs + steps * self.segment_len


def _clip(position: np.ndarray, pairs: int) -> np.ndarray:
  return np.clip(position, 0, pairs - 1)


def _pairs(
  file: token_file.TokenFile,
  starts: np.ndarray,
  segment_len: int,
  bring_inside: Callable[[np.ndarray, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Inputs and targets, [count, lanes, T], of segments that start at pairs.

  Args:
    file: the tokens.
    starts: first pair of each segment, [count, lanes].
    segment_len: T.
    bring_inside: maps positions outside the text to positions inside it.
  """
  shape = (*starts.shape, segment_len)
  pairs = len(file.tokens) - 1
  inputs = np.empty(shape, np.int32)
  targets = np.empty(shape, np.int32)
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


def _pairs_with_answers(
  file: token_file.TokenFile,
) -> jt.Bool[np.ndarray, "pairs"]:
  """True for pairs whose target is an answer.

  Raises:
    UserError: the dataset marks no answers.
  """
  if file.answers is None:
    raise errors.UserError(
      "data.targets=answers needs a synthetic task, whose answers are known, "
      f"such as --config.data.name={next(iter(registry.tasks))}; set it to all."
    )
  result = np.zeros(len(file.tokens) - 1, bool)
  result[file.answers.positions - 1] = True
  return result


def _documents(file: token_file.TokenFile, resets: str) -> np.ndarray:
  """Positions that reset memory: each document's start, or the text's."""
  return file.documents if resets == "documents" else np.zeros(1, np.int64)


def _document_starts(
  documents: np.ndarray, starts: np.ndarray, segment_len: int
) -> np.ndarray:
  """True where a document starts inside a segment, [count, lanes, T]."""
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
  *,
  parts: int = 1,
) -> segment.Segment[jax.Array]:
  """Global arrays [count, B, T]; each process reads its own lanes only.

  Where shards times `parts` do not divide the lanes, empty lanes without weight
  follow, so B is `mesh.padded_lanes`.
  """
  num_lanes = mesh_lib.padded_lanes(
    sharding.mesh, stream.num_lanes, parts=parts
  )
  shape = (count, num_lanes, 1)

  @functools.cache  # Devices along other axes of the mesh share their lanes.
  def read(start: int, stop: int) -> segment.Segment[np.ndarray]:
    found = stream.read(step, count, slice(start, stop))
    if num_lanes == stream.num_lanes:
      return found
    return segment.with_empty_lanes(found, stop - start)

  shards = []
  for device, index in sharding.addressable_devices_indices_map(shape).items():
    assert index is not None
    start, stop, _ = index[1].indices(num_lanes)
    shards.append(jax.device_put(read(start, stop), device))

  def joined(*arrays: jax.Array) -> jax.Array:
    return jax.make_array_from_single_device_arrays(
      (*shape[:2], arrays[0].shape[2]), sharding, arrays
    )

  return jax.tree.map(joined, *shards)


def reset_rule(data: schema.DataConfig, model: schema.ModelConfig) -> str:
  """Where streams reset memory: the value of `TrainStream.resets`."""
  if data.reset_at_documents:
    return "documents"
  return "never" if model.memory_start == "zeros" else "wrap"
