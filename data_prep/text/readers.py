"""Readers of text files, records and tables, as pieces.

A text file is one document, and so is every record and every row.
"""

import codecs
import csv
import gzip
import io
import itertools
import json
import os
import pathlib
import typing

from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import boundaries as boundaries_lib
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source

if typing.TYPE_CHECKING:
  from pyarrow import parquet

# A record of JSON must fit in memory.
_LONGEST_RECORD = 1 << 28
_ROWS_AT_ONCE = 1024
# Unless the rows of a batch are longer than this.
_BYTES_AT_ONCE = 1 << 24
# Bytes at a place in a file which show that it is not text.
_NOT_TEXT = (
  (0, b"PK\x03\x04", "a zip archive or an office document"),
  (0, b"PK\x05\x06", "a zip archive"),
  (0, b"\x1f\x8b", "compressed by gzip"),
  (4, b"1AY&SY", "compressed by bzip2"),
  (0, b"\xfd7zXZ\x00", "compressed by xz"),
  (0, b"\x28\xb5\x2f\xfd", "compressed by zstd"),
  (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
  (0, b"Rar!\x1a\x07", "a rar archive"),
  (257, b"ustar", "a tar archive"),
  (0, b"%PDF-", "a PDF document"),
  (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document"),
  (0, b"PAR1", "a Parquet table"),
  (0, b"ARROW1\x00\x00", "an Arrow table"),
  (0, b"\x93NUMPY", "a NumPy array"),
  (0, b"SQLite format 3\x00", "a database"),
  (0, b"\x00\x05\x16\x07", "what macOS keeps beside a file"),
)
_START = 512  # Bytes that are compared with these.
# A marker and the length 0: what Arrow 0.15 and later write after the batches.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read(
  paths: list[pathlib.Path],
  *,
  field: str,
  boundaries: boundaries_lib.Boundaries | None = None,
) -> piece_lib.Pieces:
  """Yields the documents of files, whose records have their text in a field.

  With boundaries, records are lines of one text, also those of several files.
  UserError if a file is damaged, is not text, or lacks the field.
  """
  if boundaries is None:
    return itertools.chain.from_iterable(_read(path, field) for path in paths)
  texts = (
    boundaries_lib.join(_read(path, field))
    if has_fields(path)
    else _read(path, field)
    for path in paths
  )
  text = itertools.chain.from_iterable(texts)
  return boundaries_lib.divide(text, boundaries)


def _read(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  with source.damage_reported(path):
    if _is_table(path):
      yield from _read_table(path, field)
    elif _is_csv(path):
      yield from _read_csv(path, field)
    elif _is_records(path):
      yield from _read_records(path, field)
    else:
      yield from _read_text(path)


def has_fields(path: pathlib.Path) -> bool:
  """Whether a file is read as records or as a table."""
  return _is_records(path) or _is_table(path) or _is_csv(path)


def _is_records(path: pathlib.Path) -> bool:
  return path.name.lower().endswith((".jsonl", ".jsonl.gz"))


def _is_csv(path: pathlib.Path) -> bool:
  return path.name.lower().endswith((".csv", ".csv.gz"))


def _is_table(path: pathlib.Path) -> bool:
  return path.name.lower().endswith((".parquet", ".arrow"))


def _open(path: pathlib.Path) -> gzip.GzipFile | io.BufferedReader:
  is_packed = path.name.lower().endswith(".gz")
  return gzip.open(path, "rb") if is_packed else open(path, "rb")


def _document(value: object, field: str, origin: str) -> piece_lib.Pieces:
  """Yields the text of one record; UserError if it is not text."""
  if value is None:
    raise errors.UserError(
      f"{origin} has no text in the field {field!r}, but null; delete the"
      " record, or give it text, which may be empty."
    )
  if not isinstance(value, str):
    raise errors.UserError(
      f"{origin} has no text in the field {field!r}, but a value of the type"
      f" {type(value).__name__}; name the field of the text with --field."
    )
  # Half of a surrogate pair is valid JSON, but not a character.
  data = value.encode("utf-8", "replace")
  return piece_lib.record(data, origin=origin)


def _read_text(path: pathlib.Path) -> piece_lib.Pieces:
  packed = path.stat().st_size
  with _open(path) as stream:
    start = stream.read(_START)
    for place, magic, kind in _NOT_TEXT:
      if start.startswith(magic, place):
        raise errors.UserError(
          f"{path} is not text, but {kind}; unpack or convert it, and give the"
          " files of text."
        )
    # Editors on Windows put a mark at the start of a file.
    marked = len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0
    stream.seek(marked)
    for piece in piece_lib.cut(stream, origin=str(path)):
      piece = piece._replace(offset=piece.offset + marked)
      source.refuse_bomb(path, piece.offset, packed=packed)
      yield piece


def _read_records(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  packed = path.stat().st_size
  with _open(path) as stream:
    lines = iter(lambda: stream.readline(_LONGEST_RECORD), b"")
    for number, line in enumerate(lines, start=1):
      source.refuse_bomb(path, stream.tell(), packed=packed)
      if not line.strip():
        continue
      origin = f"line {number} of {path}"
      problem = None
      if len(line) == _LONGEST_RECORD:
        problem = f"longer than {_LONGEST_RECORD} bytes"
      try:
        # As in `_read_text`.
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        record = None if problem else json.loads(line.decode(encoding))
      except (ValueError, RecursionError) as error:
        problem = f"not JSON ({error})"
      if problem:
        raise errors.UserError(
          f"{origin} is {problem}; a .jsonl file has one record per line."
        )
      if not isinstance(record, dict) or field not in record:
        names = ", ".join(record) if isinstance(record, dict) else ""
        raise errors.UserError(
          f"{origin} has no text in the field {field!r}, and its fields are"
          f" {names[:200] or 'none'}; name the field of the text with --field."
        )
      yield from _document(record[field], field, origin)


def _read_csv(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  """Yields the rows of a file whose first line names the columns."""
  csv.field_size_limit(_LONGEST_RECORD)  # The default is 128 KiB.
  packed = path.stat().st_size
  with _open(path) as stream:
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    rows = csv.reader(text, strict=True)
    number = 0
    try:
      names = next(rows, [])
      if field not in names:
        words = ", ".join(names).split()  # A name may have line ends.
        columns = vocabulary.printable(" ".join(words))[:200] or "none"
        raise errors.UserError(
          f"{path} has no column {field!r}, only {columns}; name the column of"
          " the text with --field."
        )
      if names.count(field) > 1:
        raise errors.UserError(
          f"{path} has {names.count(field)} columns {field!r}; give one of them"
          " another name, or name the column of the text with --field."
        )
      column = names.index(field)
      num_empty = 0
      for number, row in enumerate(rows, start=1):
        source.refuse_bomb(path, stream.tell(), packed=packed)
        if not row:  # An empty line, as at the end of many files.
          num_empty += 1
          continue
        if len(names) == 1:
          # Within a file of one column it is a value without quotes.
          for empty in range(number - num_empty, number):
            yield from _document("", field, f"row {empty} of {path}")
        num_empty = 0
        if len(row) != len(names):
          raise csv.Error(f"{len(row)} values for {len(names)} columns")
        yield from _document(row[column], field, f"row {number} of {path}")
    except (csv.Error, UnicodeDecodeError) as error:
      raise errors.UserError(
        f"{path} is not CSV in UTF-8 with a line of names, after row {number}"
        f" ({error}); write it again, with quotes around values that have"
        " commas, quotes or line ends."
      ) from None


def _read_table(path: pathlib.Path, field: str) -> piece_lib.Pieces:
  """Yields the rows of a Parquet file, or of an Arrow file of HuggingFace."""
  import pyarrow  # Takes as long to import as a small preparation.
  from pyarrow import parquet

  packed = path.stat().st_size
  if path.suffix.lower() == ".parquet":
    metadata = parquet.read_metadata(path)
    schema = parquet.read_schema(path)
    stated = _stated_bytes(metadata, field)
    source.refuse_bomb(path, stated, packed=packed)
    rows = metadata.num_rows * _BYTES_AT_ONCE // max(stated, 1)
    rows = min(max(rows, 1), _ROWS_AT_ONCE)
    # A value that a file has once for many rows is in memory once. Lists and
    # structs cannot be; `_document` says what they are.
    has_values = field in schema.names and not pyarrow.types.is_nested(
      schema.field(field).type
    )
    kept_once = [field] if has_values else []
    table = parquet.ParquetFile(path, read_dictionary=kept_once)
    batches = table.iter_batches(rows, columns=[field])
  else:
    try:
      table = pyarrow.ipc.open_stream(pyarrow.OSFile(str(path)))
      _require_end_of_stream(path)
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
  num_bytes = 0
  for batch in batches:
    # Arrow trusts the offsets in a file, and a damaged one ends the process.
    batch.validate(full=True)
    for value in batch.column(field):
      number += 1
      pieces = _document(value.as_py(), field, f"row {number} of {path}")
      for piece in pieces:
        num_bytes += len(piece.data)
        source.refuse_bomb(path, num_bytes, packed=packed)
        yield piece


def _stated_bytes(metadata: "parquet.FileMetaData", field: str) -> int:
  """Returns the size of a column, unpacked, as a Parquet file states it.

  A value that stands once for many rows counts once.
  """
  groups = map(metadata.row_group, range(metadata.num_row_groups))
  columns = [
    group.column(i) for group in groups for i in range(group.num_columns)
  ]
  return sum(
    column.total_uncompressed_size
    for column in columns
    if column.path_in_schema == field
  )


def _require_end_of_stream(path: pathlib.Path) -> None:
  """Refuses a stream that was cut between two batches.

  Arrow itself takes the end of the file for the end of the stream.
  """
  with open(path, "rb") as file:
    file.seek(-len(_END_OF_STREAM), os.SEEK_END)
    end = file.read()
  if end != _END_OF_STREAM:
    raise OSError("the stream has no end")
