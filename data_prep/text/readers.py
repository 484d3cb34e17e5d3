"""Readers of text files, records and tables, as pieces.

A text file is one document, and so is every record and every row.
"""

import gzip
import io
import json
import pathlib
from typing import Any

from data_prep import piece as piece_lib
from data_prep import source
from transformer_xl import errors

# A record of JSON must fit in memory.
_LONGEST_RECORD = 1 << 28
_ROWS_AT_ONCE = 1024


def read(paths: list[pathlib.Path], *, field: str) -> piece_lib.Pieces:
  """Yields the documents of files, whose records have their text in a field.

  UserError if a file is damaged, or lacks the field.
  """
  for path in paths:
    name = path.name.lower()
    with source.damage_reported(path):
      if name.endswith(".jsonl"):
        yield from _read_records(path, field)
      elif name.endswith((".parquet", ".arrow")):
        yield from _read_table(path, field)
      else:
        yield from _read_text(path)


def _document(value: Any, field: str, origin: str) -> piece_lib.Pieces:
  """Yields the text of one record; UserError if it is not text."""
  if not isinstance(value, str):
    raise errors.UserError(
      f"{origin} has no text in the field {field!r}; name its --field."
    )
  # Half of a surrogate pair is valid JSON, but not a character.
  data = value.encode("utf-8", "replace")
  return piece_lib.cut(io.BytesIO(data), origin=origin)


def _read_text(path: pathlib.Path) -> piece_lib.Pieces:
  is_packed, size = path.name.lower().endswith(".gz"), path.stat().st_size
  with gzip.open(path) if is_packed else open(path, "rb") as stream:
    for piece in piece_lib.cut(stream, origin=str(path)):
      source.refuse_bomb(path, piece.offset, packed=size)
      yield piece


def _read_records(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  with open(path, "rb") as stream:
    lines = iter(lambda: stream.readline(_LONGEST_RECORD), b"")
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      origin, problem = f"line {number} of {path}", None
      if len(line) == _LONGEST_RECORD:
        problem = f"longer than {_LONGEST_RECORD} bytes"
      try:
        record = None if problem else json.loads(line.decode("utf-8"))
      except (ValueError, RecursionError) as error:
        problem = f"not JSON ({error})"
      if problem:
        raise errors.UserError(
          f"{origin} is {problem}; a .jsonl file has one record per line."
        )
      value = record.get(field) if isinstance(record, dict) else None
      yield from _document(value, field, origin)


def _read_table(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  """Yields the rows of a Parquet file, or of an Arrow file of HuggingFace."""
  import pyarrow  # Takes as long to import as a small preparation.
  from pyarrow import parquet

  if path.suffix.lower() == ".parquet":
    table = parquet.ParquetFile(path)
    schema = table.schema_arrow
    batches = table.iter_batches(_ROWS_AT_ONCE, columns=[field])
  else:
    try:
      table = pyarrow.ipc.open_stream(pyarrow.OSFile(str(path)))
      batches = iter(table)
    except pyarrow.ArrowInvalid:
      table = pyarrow.ipc.open_file(pyarrow.OSFile(str(path)))
      batches = map(table.get_batch, range(table.num_record_batches))
    schema = table.schema
  if field not in schema.names:
    raise errors.UserError(
      f"{path} has no column {field!r}, only {', '.join(schema.names)}; name"
      " the column of the text with --field."
    )
  number = 0
  for batch in batches:
    # Arrow trusts the offsets in a file, and a damaged one ends the process.
    batch.validate(full=True)
    for value in batch.column(field).to_pylist():
      number += 1
      yield from _document(value, field, f"row {number} of {path}")
