"""Token files: prepared splits, mapped into memory and checked.

A split is one flat array of ids, `<dir>/<name>/<split>.npy`. The positions of
document starts lie beside it, and where some tokens are answers, their
positions and distances; `meta.json` describes them.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import pathlib
import tokenize
from typing import Any, NamedTuple

import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import registry

# Raised by NumPy for damaged headers, which it parses as Python literals.
_DAMAGE = (
  ValueError,
  EOFError,
  OSError,
  OverflowError,
  TypeError,
  SyntaxError,
  MemoryError,
  RecursionError,
  LookupError,
  tokenize.TokenError,
)

_COUNTED = 1 << 24  # Tokens that are counted at a time.
Meta = dict[str, Any]  # The content of `meta.json`, or of an entry.


class Answers(NamedTuple):
  """Tokens that can be told from the text before them; Q of them, in order."""

  positions: jt.Int[np.ndarray, "Q"]
  # How far back the evidence lies, in the unit of the task.
  distances: jt.Int[np.ndarray, "Q"]


@dataclasses.dataclass(frozen=True)
class TokenFile:
  """One split of a prepared dataset."""

  tokens: np.ndarray  # [num_tokens], memory-mapped.
  documents: np.ndarray  # Sorted positions where documents start.
  sha256: str  # Of the token file; checked against `meta.json`.
  meta: Meta  # The split's entry in `meta.json`.
  answers: Answers | None = None  # None where the dataset marks none.


def read_meta(directory: str) -> Meta:
  """Reads `meta.json` of a prepared dataset.

  If it is missing or damaged, a UserError names the command that prepares it.
  """
  path = os.path.join(storage.local(directory), "meta.json")
  try:
    with open(path, encoding="utf-8") as file:
      meta = json.load(file)
    _check_meta(meta)
    return meta
  except FileNotFoundError:
    raise errors.UserError(
      f"there is no prepared data in {directory}; {_suggestion(directory)}"
      f"prepare it: {_prepare_command(directory)}"
    ) from None
  except (ValueError, LookupError, TypeError, RecursionError) as error:
    reason = " ".join(str(error).split())[:200]
    raise _damaged(directory, "meta.json", f"is damaged ({reason})") from None


def _check_meta(meta: Meta) -> None:
  """Raises a LookupError or TypeError if a field that is read is missing."""
  numbers = [meta["vocabulary"]["size"]]
  splits = meta.get("splits", {})  # A folder with only a vocabulary has none.
  for name, entry in dict.items(splits):  # A TypeError unless it is one.
    numbers.append(entry["num_tokens"])
    if not isinstance(entry["sha256"], str):
      raise TypeError(f"{name} has no sha256")
  if not all(type(n) is int and 0 < n < 1 << 62 for n in numbers):
    raise TypeError("a count is not a positive integer")


def open_split(directory: str, split: str) -> TokenFile:
  """Maps a split into memory and checks it against `meta.json`.

  Each process reads the whole file once for its hash, about one second per
  gigabyte. A file in a bucket is copied to the cache (`storage.cached`) once,
  and again if the copy is damaged.

  Raises:
    UserError: the split is missing or not what was prepared.
  """
  meta = read_meta(directory)
  splits = meta.get("splits", {})
  if split not in splits:
    raise errors.UserError(
      f"{directory} has no split {split!r}, only {', '.join(splits)}."
    )
  try:
    return _open(directory, split, meta)
  except errors.UserError:
    if not storage.is_bucket(directory):
      raise
  for path in _paths(directory, split, meta):
    pathlib.Path(path).unlink(missing_ok=True)
  return _open(directory, split, meta)


def _open(directory: str, split: str, meta: Meta) -> TokenFile:
  entry = meta["splits"][split]
  path, starts_path, *answer_paths = _paths(directory, split, meta)
  tokens = _load(directory, path)
  documents = _load(directory, starts_path)
  if len(tokens) != entry["num_tokens"] or len(tokens) < 2:
    counts = f"{len(tokens)} tokens where meta.json says {entry['num_tokens']}"
    raise _damaged(directory, path, f"has {counts}")
  status = os.stat(path)
  digest = _sha256_once(path, status.st_size, status.st_mtime_ns)
  if digest != entry["sha256"]:
    hashes = f"{digest[:12]} where meta.json says {entry['sha256'][:12]}"
    raise _damaged(directory, path, f"has the SHA-256 {hashes}: it was changed")
  documents = np.array(documents)
  count = entry.get("num_documents", len(documents))
  if len(documents) != count:
    counts = f"{len(documents)} documents where meta.json says {count!r}"
    raise _damaged(directory, starts_path, f"has {counts}")
  _check_positions(directory, starts_path, documents, len(tokens))
  if not answer_paths:
    return TokenFile(tokens, documents, digest, entry)

  answers = Answers(
    *[np.array(_load(directory, each)) for each in answer_paths]
  )
  for each, array in zip(answer_paths, answers, strict=True):
    if len(array) != entry["num_answers"]:
      counts = f"{len(array)} numbers where meta.json says"
      raise _damaged(directory, each, f"has {counts} {entry['num_answers']!r}")
  _check_positions(directory, answer_paths[0], answers.positions, len(tokens))
  return TokenFile(tokens, documents, digest, entry, answers)


def _check_positions(
  directory: str, path: str, positions: np.ndarray, num_tokens: int
) -> None:
  """Raises a UserError unless positions rise and lie inside the split."""
  rises = np.all(positions[1:] > positions[:-1])
  if not rises or not np.all((positions >= 0) & (positions < num_tokens)):
    wanted = f"must have rising positions below {num_tokens}"
    raise _damaged(directory, path, wanted)


def _paths(directory: str, split: str, meta: Meta) -> list[str]:
  """Paths on disk of the tokens, the documents' starts and the answers."""
  entry = meta["splits"][split]
  tokens = entry["sha256"]
  names = [f"{split}_documents.npy"]
  if "num_answers" in entry:
    names += [f"{split}_answers.npy", f"{split}_distances.npy"]
  # Another dataset may cut the same tokens into other documents.
  made_by = meta.get("recipe") or storage.absolute(directory)
  beside = hashlib.sha256(f"{tokens} {made_by}".encode()).hexdigest()
  return [
    storage.cached(directory, f"{split}.npy", tokens),
    *(storage.cached(directory, name, beside) for name in names),
  ]


def tail_shares(file: TokenFile, cutoffs: tuple[int, ...]) -> tuple[float, ...]:
  """Returns the share of a split's tokens in each cluster after the first.

  In a long split only 64 evenly spaced samples are counted.
  """
  tokens = file.tokens
  if len(tokens) > 1 << 22:
    starts = np.linspace(0, len(tokens), 64, endpoint=False, dtype=int)
    tokens = np.concatenate([tokens[at : at + (1 << 16)] for at in starts])
  cluster = np.searchsorted(cutoffs, tokens, side="right")
  counts = np.bincount(cluster, minlength=len(cutoffs) + 1)
  return tuple((counts[1:] / len(tokens)).tolist())


def unigram_entropy(file: TokenFile, *, targets: str = "all") -> float:
  """Entropy of a split's token frequencies, in nats per token.

  It is the loss of the best prediction that does not look at the text. With
  `targets="answers"` it is the entropy of the answers alone, which must exist.
  """
  tokens = file.tokens
  if targets == "answers":
    assert file.answers is not None
    tokens = tokens[file.answers.positions]
  counts = np.zeros(0, np.int64)
  for start in range(0, len(tokens), _COUNTED):
    part = np.bincount(tokens[start : start + _COUNTED], minlength=len(counts))
    part[: len(counts)] += counts
    counts = part
  shares = counts[counts > 0] / len(tokens)
  return float(-(shares * np.log(shares)).sum())


def _load(directory: str, path: str) -> np.ndarray:
  """Maps a flat array of integers; a UserError if it is missing or damaged."""
  try:
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 1 or array.dtype.kind not in "iu":
      raise ValueError
    return array
  except FileNotFoundError:
    raise _damaged(directory, path, "is missing") from None
  except _DAMAGE:  # NumPy's own message suggests pickles.
    problem = "is truncated or not a token file"
    raise _damaged(directory, path, problem) from None


def sha256(path: str | os.PathLike[str]) -> str:
  """SHA-256 of a file's content, in hexadecimal."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def _sha256_once(path: str, size: int, changed_ns: int) -> str:
  """SHA-256 of a file, computed again only when its size or time changes."""
  del size, changed_ns
  return sha256(path)


def is_named(name: str) -> bool:
  """Whether data_prep makes a dataset of this name."""
  return name in registry.datasets or name in registry.tasks


def _prepare_command(directory: str) -> str:
  parent, name = os.path.split(directory.rstrip("/"))
  dataset = f"--dataset={name}"
  if not is_named(name):
    dataset = f"--dataset=text --source=YOUR_TEXT --name={name}"
  return f"transformer-xl-data {dataset} --data_dir={parent}"


def _suggestion(directory: str) -> str:
  """Suggests the prepared or known dataset with the most similar name."""
  parent, name = os.path.split(directory.rstrip("/"))
  if is_named(name):
    return ""
  prepared = [
    other
    for other in storage.names(parent)
    if "meta.json" in storage.names(os.path.join(parent, other))
  ]
  known = [*prepared, *registry.datasets, *registry.tasks]
  close = difflib.get_close_matches(name, known, n=1)
  return f"did you mean {close[0]}? Otherwise " if close else ""


def _damaged(directory: str, path: str, problem: str) -> errors.UserError:
  """An error that names the file in the dataset's folder, not its copy."""
  name = os.path.join(directory, os.path.basename(path))
  command = _prepare_command(directory)
  return errors.UserError(
    f"{name} {problem}; delete {directory} and prepare it again: {command}"
  )
