"""Anybody's own text: files of .txt, .txt.gz or .jsonl with a field.

A text file is one document, and so is a record of a .jsonl file.
"""

import dataclasses
import functools
import glob
import gzip
import hashlib
import io
import json
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence

from data_prep import corpus
from data_prep import piece as piece_lib
from data_prep import source as source_lib
from data_prep import tokenizer as tokenizer_lib
from data_prep.text import holdout
from transformer_xl import errors

_SUFFIXES = (".txt", ".txt.gz", ".jsonl")
_SPLITS = ("train", "valid", "test")
# A record of JSON must be held in memory as a whole.
_LONGEST_RECORD = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Where the text of each split is."""

  # Validation and test text, or None to hold out a part of the source.
  valid_source: str | None = None
  test_source: str | None = None
  valid_fraction: float = 0.05
  test_fraction: float = 0.05
  field: str = "text"  # Of the records in .jsonl files.


def open_corpus(
  options: Options, tokenizer: tokenizer_lib.Tokenizer, *, source: str | None
) -> corpus.Corpus:
  """Returns the corpus; UserError if no text is found where it should be.

  Args:
    options: What else the user says of the text.
    tokenizer: How it is to be cut into symbols.
    source: A file, a folder, or patterns with commas between.
  """
  if source is None:
    raise errors.UserError(
      "--dataset=text needs your text: --source=FILE, FOLDER or 'books/*.txt'."
    )
  files = _files_of_splits(source, options)
  splits: dict[str, corpus.Split] = {
    split: functools.partial(read, paths, field=options.field)
    for split, paths in files.items()
  }
  if set(splits) == {"train"}:
    splits = holdout.divide(
      splits["train"], valid=options.valid_fraction, test=options.test_fraction
    )
  # Characters of validation text need an id, too; for words there is <unk>.
  counted = tuple(splits) if tokenizer.kind == "character" else ("train",)
  return corpus.Corpus(
    name="text",
    splits=splits,
    tokenizer=tokenizer,
    vocabulary_splits=counted if "train" in splits else tuple(splits),
    source={"path": source},
    fingerprint=_fingerprint([p for paths in files.values() for p in paths]),
  )


def read(
  paths: Sequence[pathlib.Path], *, field: str
) -> Iterator[piece_lib.Piece]:
  """Yields the documents of some files."""
  for path in paths:
    with source_lib.damage_reported(path):
      if path.name.endswith(".gz"):
        yield from _read_gzip(path)
      elif path.name.endswith(".jsonl"):
        yield from _read_records(path, field=field)
      else:
        with open(path, "rb") as stream:
          yield from piece_lib.cut(stream, origin=str(path))


def _read_gzip(path: pathlib.Path) -> Iterator[piece_lib.Piece]:
  packed = path.stat().st_size
  with gzip.open(path) as stream:
    for piece in piece_lib.cut(stream, origin=str(path)):
      source_lib.refuse_bomb(path, piece.offset, packed=packed)
      yield piece


def _read_records(
  path: pathlib.Path, *, field: str
) -> Iterator[piece_lib.Piece]:
  with open(path, "rb") as stream:
    number = 0
    while line := stream.readline(_LONGEST_RECORD):
      number += 1
      if not line.strip():
        continue
      if len(line) == _LONGEST_RECORD:
        raise errors.UserError(
          f"line {number} of {path} is longer than {_LONGEST_RECORD} bytes; a"
          " .jsonl file has one record a line."
        )
      text = _field_of(line, field, f"line {number} of {path}")
      yield from piece_lib.cut(io.BytesIO(text), origin=f"{path}:{number}")


def _field_of(line: bytes, field: str, place: str) -> bytes:
  try:
    record = json.loads(line.decode("utf-8"))
  except (ValueError, RecursionError) as error:
    raise errors.UserError(
      f"{place} is not JSON ({error}); a .jsonl file has one record a line."
    ) from None
  value = record.get(field) if isinstance(record, dict) else None
  if not isinstance(value, str):
    raise errors.UserError(
      f"{place} has no text in the field {field!r}; name the field of the"
      " text with --field."
    )
  # Half of a surrogate pair is valid JSON, but no character.
  return value.encode("utf-8", "replace")


def _files_of_splits(
  source: str, options: Options
) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split, in the order train, valid, test."""
  given = {
    "train": source,
    "valid": options.valid_source,
    "test": options.test_source,
  }
  files = {s: _expand(where) for s, where in given.items() if where is not None}
  named = {p: p.name.split(".")[0] for p in files["train"]}
  if len(files) > 1 or not set(named.values()) <= set(_SPLITS):
    return files
  # Files called train.txt, valid.txt, test.txt say themselves what they are.
  return {
    split: [path for path, name in named.items() if name == split]
    for split in _SPLITS
    if split in named.values()
  }


def _expand(where: str) -> list[pathlib.Path]:
  """Returns the text files that a path or patterns stand for, sorted."""
  found: list[pathlib.Path] = []
  for pattern in where.split(","):
    place = pathlib.Path(pattern).expanduser()
    if place.is_dir():
      names = source_lib.Folder(place).names()
      found += [place / n for n in names if n.endswith(_SUFFIXES)]
    else:
      matches = map(pathlib.Path, glob.glob(str(place), recursive=True))
      found += sorted(match for match in matches if match.is_file())
  if not found:
    raise errors.UserError(
      f"{where} has no files of text; give a file, a folder with"
      f" {', '.join(_SUFFIXES)} files, or a pattern such as 'books/*.txt'."
    )
  return found


def _fingerprint(paths: Sequence[pathlib.Path]) -> str:
  stats = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
  return hashlib.sha256(repr(stats).encode()).hexdigest()
