"""Token files, and streams of segments that are pure functions of the step.

A split is one flat array of ids, `<dir>/<name>/<split>.npy`, with a list of
document starts beside it and `meta.json` for both. Lanes are cut out of it at
run time, so the same files serve any batch size and any number of devices, and
a position in the data is a step and nothing else.

Of N tokens there are N-1 pairs (token, next token); pair p has the input p and
the target p+1.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import tokenize
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_xl import config as config_lib
from transformer_xl import errors
from transformer_xl import segment_lengths
from transformer_xl import step as step_lib

# What NumPy raises for damaged headers, which it reads as Python's literals.
_NO_ARRAY = (
  *(ValueError, EOFError, OSError, OverflowError, TypeError, SyntaxError),
  *(MemoryError, RecursionError, LookupError, tokenize.TokenError),
)


@dataclasses.dataclass(frozen=True)
class TokenFile:
  """One split as it lies on disk."""

  tokens: np.ndarray  # [num_tokens], memory-mapped.
  documents: np.ndarray  # Sorted positions where documents start.
  sha256: str  # Of the file, as `meta.json` states it.
  meta: dict[str, Any]  # The split's entry there.


def read_meta(directory: str) -> dict[str, Any]:
  """`meta.json` of a prepared dataset.

  Raises:
    UserError: there is none; the text has the command that prepares it.
  """
  path = os.path.join(directory, "meta.json")
  try:
    with open(path, encoding="utf-8") as file:
      meta = json.load(file)
    _check_meta(meta)
    return meta
  except FileNotFoundError:
    raise errors.UserError(
      f"there is no prepared data in {directory}; prepare it: "
      f"{_command(directory)}"
    ) from None
  except (ValueError, LookupError, TypeError, RecursionError) as error:
    reason = " ".join(str(error).split())[:200]
    raise errors.UserError(
      f"{path} is damaged ({reason}); {_again(directory)}"
    ) from None


def _check_meta(meta: Any) -> None:
  """Raises a LookupError or a TypeError unless what is read of it is there."""
  numbers = [meta["vocabulary"]["size"]]
  splits = meta.get("splits", {})  # A vocabulary alone has none.
  if not isinstance(splits, dict):
    raise TypeError("the splits have no names")
  for name, entry in splits.items():
    numbers.append(entry["num_tokens"])
    if not isinstance(entry["sha256"], str):
      raise TypeError(f"{name} has no sha256")
  if not all(type(n) is int and 0 < n < 1 << 62 for n in numbers):
    raise TypeError("a count is no count")


def open_split(directory: str, split: str) -> TokenFile:
  """Maps one split into memory and checks it against `meta.json`.

  Each process reads all of it once for its hash, about a second a gigabyte.

  Raises:
    UserError: the split is missing, truncated, or not what was prepared.
  """
  splits = read_meta(directory).get("splits", {})
  if split not in splits:
    raise errors.UserError(
      f"{directory} has no split {split!r}, only {', '.join(splits)}."
    )
  entry = splits[split]
  path = os.path.join(directory, f"{split}.npy")
  tokens = _load(path)
  documents = np.array(_load(os.path.join(directory, f"{split}_documents.npy")))
  if len(tokens) != entry["num_tokens"] or len(tokens) < 2:
    raise errors.UserError(
      f"{directory}/{split}.npy has {len(tokens)} tokens where meta.json says "
      f"{entry['num_tokens']}; {_again(directory)}"
    )
  status = os.stat(path)
  digest = _sha256(path, status.st_size, status.st_mtime_ns)
  if digest != entry["sha256"]:
    raise errors.UserError(
      f"{path} has the SHA-256 {digest[:12]} where meta.json says "
      f"{entry['sha256'][:12]}: it was changed; {_again(directory)}"
    )
  rises = np.all(documents[1:] > documents[:-1])
  if not rises or not np.all((documents >= 0) & (documents < len(tokens))):
    raise errors.UserError(
      f"{directory}/{split}_documents.npy must have rising positions below "
      f"{len(tokens)}; {_again(directory)}"
    )
  return TokenFile(tokens, documents, digest, entry)


def tail_shares(file: TokenFile, cutoffs: tuple[int, ...]) -> tuple[float, ...]:
  """Shares of a split's tokens from each cutoff to the next.

  Of a long split only 64 evenly spaced places are read.
  """
  places = np.linspace(0, len(file.tokens), 64, endpoint=False, dtype=int)
  parts = [file.tokens[place : place + (1 << 16)] for place in places]
  tokens = np.concatenate(
    parts if len(file.tokens) > 1 << 22 else [file.tokens]
  )
  cluster = np.searchsorted(cutoffs, tokens, side="right")
  counts = np.bincount(cluster, minlength=len(cutoffs) + 1)
  return tuple((counts[1:] / len(tokens)).tolist())


def _load(path: str) -> np.ndarray:
  """Maps one row of integers; a length that the file lacks is no array."""
  again = _again(os.path.dirname(path))
  try:
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 1 or array.dtype.kind not in "iu":
      raise ValueError
    return array
  except FileNotFoundError:
    raise errors.UserError(f"{path} is missing; {again}") from None
  except _NO_ARRAY:  # NumPy's text proposes pickles.
    raise errors.UserError(
      f"{path} is truncated or no token file; {again}"
    ) from None


@functools.cache
def _sha256(path: str, size: int, changed_ns: int) -> str:
  """Of a file, once as long as it has this size and time of change."""
  del size, changed_ns
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _command(directory: str) -> str:
  parent, name = os.path.split(os.path.normpath(directory))
  return f"python -m data_prep.main --dataset={name} --data_dir={parent}"


def _again(directory: str) -> str:
  return f"delete {directory} and prepare it again: {_command(directory)}"


@dataclasses.dataclass(frozen=True)
class TrainStream:
  """Endless lanes through one split, each starting where it would be cut.

  Lane b starts at pair b * L, L = pairs // lanes, and reads on without end:
  into the text of the next lane, and from the last pair to the first. No token
  is dropped, no lane ever jumps, and each epoch cuts segments elsewhere. With
  `rotate` all lanes jump by one random offset at each epoch instead.
  """

  file: TokenFile
  num_lanes: int
  segment_len: int
  resets: str  # "documents", "wrap": where the corpus starts over, or "never".
  rotate: bool
  seed: int
  # Where not all are `segment_len`; then no lane may jump.
  lengths: segment_lengths.SegmentLengths | None = None

  def __post_init__(self):
    longest = max(self.lengths.lens) if self.lengths else self.segment_len
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
    return self.lengths.at(step) if self.lengths else self.segment_len

  def read(self, step: int, count: int, lanes: slice) -> step_lib.Segment:
    """The segments of steps [step, step + count) for some lanes.

    Returns:
      NumPy arrays [count, lanes, T]; with `lengths`, all of one call's length.
    """
    steps = np.arange(step, step + count)[:, None]
    starts = np.arange(self.num_lanes)[lanes] * (self.pairs // self.num_lanes)
    length = self.length_at(step)
    if self.lengths:
      starts = starts + self.lengths.tokens_before(step)
      starts = starts + (steps - step) * length
    elif self.rotate:
      epoch, steps = np.divmod(steps, self.steps_per_epoch)
      starts = starts + self._offsets(epoch) + steps * length
    else:
      starts = starts + steps * length
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

  file: TokenFile
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

  def read(self, step: int, count: int, lanes: slice) -> step_lib.Segment:
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


def _segment(*fields: Any) -> step_lib.Segment:
  """NumPy's arrays where the types say JAX's."""
  return step_lib.Segment(*fields)


def _clip(position: np.ndarray, pairs: int) -> np.ndarray:
  return np.clip(position, 0, pairs - 1)


def _pairs(
  file: TokenFile,
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


def _documents(file: TokenFile, resets: str) -> np.ndarray:
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
) -> step_lib.Segment:
  """Global arrays [count, B, T] of which each process reads its lanes only."""
  shape = (count, stream.num_lanes, stream.length_at(step))
  cache: dict[tuple, step_lib.Segment] = {}

  def read(lanes: slice) -> step_lib.Segment:
    bounds = lanes.indices(stream.num_lanes)
    if bounds not in cache:
      cache[bounds] = stream.read(step, count, slice(*bounds))
    return cache[bounds]

  def array(name: str) -> jax.Array:
    def part(index: Any) -> np.ndarray:
      return getattr(read(index[1]), name)

    return jax.make_array_from_callback(shape, sharding, part)

  return step_lib.Segment(*map(array, step_lib.Segment._fields))


def reset_rule(config: config_lib.ExperimentConfig) -> str:
  """Where streams reset memory, see `TrainStream.resets`."""
  if config.data.reset_at_documents:
    return "documents"
  return "never" if config.model.memory_start == "zeros" else "wrap"


def with_vocab_size(
  config: config_lib.ExperimentConfig, meta: dict[str, Any]
) -> config_lib.ExperimentConfig:
  """Takes the vocabulary's size from the data, or checks it against it."""
  size, wanted = meta["vocabulary"]["size"], config.model.vocab_size
  if wanted not in (0, size):
    raise errors.UserError(
      f"model.vocab_size={wanted}, but the data in {config.data.dir}/"
      f"{config.data.name} has {size} symbols; set --config.model.vocab_size=0 "
      "or prepare the data again."
    )
  model = dataclasses.replace(config.model, vocab_size=size)
  result = dataclasses.replace(config, model=model)
  config_lib.check(result)
  return result
