"""Token files: prepared splits, mapped into memory and checked.

A split is one flat array of ids, `<dir>/<name>/<split>.npy`. The positions of
document starts lie beside it, and `meta.json` describes both.
"""

import dataclasses
import difflib
import functools
import glob
import hashlib
import json
import os
import tokenize
from typing import Any

import numpy as np

from transformer_xl import errors

# Raised by NumPy for damaged headers, which it parses as Python literals.
_DAMAGE = (
  *(ValueError, EOFError, OSError, OverflowError, TypeError, SyntaxError),
  *(MemoryError, RecursionError, LookupError, tokenize.TokenError),
)

# Datasets that data_prep makes under their own names.
BENCHMARKS = (
  "enwik8",
  "lm1b",
  "ptb",
  "python_stdlib",
  "text8",
  "wikitext103",
  "wikitext2",
)


@dataclasses.dataclass(frozen=True)
class TokenFile:
  """One split of a prepared dataset."""

  tokens: np.ndarray  # [num_tokens], memory-mapped.
  documents: np.ndarray  # Sorted positions where documents start.
  sha256: str  # Of the token file; checked against `meta.json`.
  meta: dict[str, Any]  # The split's entry in `meta.json`.


def read_meta(directory: str) -> dict[str, Any]:
  """Reads `meta.json` of a prepared dataset.

  Raises:
    UserError: it is missing or damaged; the error names the command that
      prepares the dataset.
  """
  path = os.path.join(directory, "meta.json")
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
    raise errors.UserError(
      f"{path} is damaged ({reason}); {_again(directory)}"
    ) from None


def _check_meta(meta: Any) -> None:
  """Raises a LookupError or TypeError if a field that is read is missing."""
  numbers = [meta["vocabulary"]["size"]]
  splits = meta.get("splits", {})  # A folder with only a vocabulary has none.
  if not isinstance(splits, dict):
    raise TypeError("the splits have no names")
  for name, entry in splits.items():
    numbers.append(entry["num_tokens"])
    if not isinstance(entry["sha256"], str):
      raise TypeError(f"{name} has no sha256")
  if not all(type(n) is int and 0 < n < 1 << 62 for n in numbers):
    raise TypeError("a count is not a positive integer")


def open_split(directory: str, split: str) -> TokenFile:
  """Maps a split into memory and checks it against `meta.json`.

  Each process reads the whole file once for its hash, about one second per
  gigabyte.

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
  digest = _sha256_once(path, status.st_size, status.st_mtime_ns)
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
  """Returns the share of a split's tokens in each cluster after the first.

  In a long split only 64 evenly spaced samples are counted.
  """
  starts = np.linspace(0, len(file.tokens), 64, endpoint=False, dtype=int)
  parts = [file.tokens[start : start + (1 << 16)] for start in starts]
  tokens = np.concatenate(
    parts if len(file.tokens) > 1 << 22 else [file.tokens]
  )
  cluster = np.searchsorted(cutoffs, tokens, side="right")
  counts = np.bincount(cluster, minlength=len(cutoffs) + 1)
  return tuple((counts[1:] / len(tokens)).tolist())


def _load(path: str) -> np.ndarray:
  """Maps a flat array of integers; a UserError if it is missing or damaged."""
  again = _again(os.path.dirname(path))
  try:
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 1 or array.dtype.kind not in "iu":
      raise ValueError
    return array
  except FileNotFoundError:
    raise errors.UserError(f"{path} is missing; {again}") from None
  except _DAMAGE:  # NumPy's own message suggests pickles.
    raise errors.UserError(
      f"{path} is truncated or not a token file; {again}"
    ) from None


def sha256(path: str | os.PathLike[str]) -> str:
  """SHA-256 of a file's content, in hexadecimal."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def _sha256_once(path: str, size: int, changed_ns: int) -> str:
  """SHA-256 of a file, computed again only when its size or time changes."""
  del size, changed_ns
  return sha256(path)


def _prepare_command(directory: str) -> str:
  parent, name = os.path.split(os.path.normpath(directory))
  dataset = f"--dataset={name}"
  if name not in BENCHMARKS:
    dataset = f"--dataset=text --source=YOUR_TEXT --name={name}"
  return f"python -m data_prep.main {dataset} --data_dir={parent}"


def _suggestion(directory: str) -> str:
  """The dataset that was probably meant, of those prepared and the known."""
  parent, name = os.path.split(os.path.normpath(directory))
  prepared = glob.glob(os.path.join(glob.escape(parent), "*", "meta.json"))
  names = [os.path.basename(os.path.dirname(path)) for path in prepared]
  if name in BENCHMARKS:
    return ""
  close = difflib.get_close_matches(name, [*names, *BENCHMARKS], n=1)
  return f"did you mean {close[0]}? Otherwise " if close else ""


def _again(directory: str) -> str:
  return (
    f"delete {directory} and prepare it again: {_prepare_command(directory)}"
  )
