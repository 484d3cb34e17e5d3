"""Reads TensorFlow's checkpoint format "V2" without TensorFlow.

PREFIX.index is a LevelDB table from variable names to BundleEntryProto
messages; PREFIX.data-00000-of-00001 holds the values, one variable after
another. Both carry checksums, and both are checked.
"""

import collections
import math
import os
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import google_crc32c
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from transformer_xl import errors

TABLE_MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48
_LONGEST_NAME = 1 << 12
_CRC_OFFSET = 0xA282EAD8
# By the numbers of tensorflow/core/framework/types.proto.
DTYPES = {1: "f4", 2: "f8", 19: "f2", 3: "i4", 9: "i8"}
DTYPES |= {14: ml_dtypes.bfloat16}


Fields = dict[int, list[Any]]  # Numbers and bytes of a message, by field.


class Entry(NamedTuple):
  """Type, shape and location of a variable's values."""

  dtype: int
  shard: int
  offset: int  # Bytes.
  size: int  # Bytes.
  checksum: int  # Masked CRC-32C.
  shape: tuple[int, ...]
  sliced: bool


class Bundle(Mapping[str, np.ndarray]):
  """The variables of a checkpoint by name; values are read on access.

  Raises:
    UserError: a file is missing, truncated, damaged or of another format.
  """

  def __init__(self, prefix: str):
    self.prefix = prefix
    self._entries, num_shards = _read_index(f"{prefix}.index")
    self.files = tuple(
      f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"
      for shard in range(num_shards)
    )
    self._shards = [_map_file(path) for path in self.files]
    lengths = dict(enumerate(map(len, self._shards)))
    for name, entry in self._entries.items():
      if entry.offset + entry.size > lengths.get(entry.shard, -1):
        raise errors.UserError(
          f"{prefix}.data-* ends before the values of {name}: the file is "
          "truncated; copy it again."
        )

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """All shapes, without reading values."""
    return {name: entry.shape for name, entry in self._entries.items()}

  def __getitem__(self, name: str) -> np.ndarray:
    """Reads a tensor, in the shape given by `shapes`."""
    entry = self._entries[name]
    if entry.sliced or entry.dtype not in DTYPES:
      raise errors.UserError(
        f"{self.prefix}: {name} is a partitioned variable or not numeric "
        f"(type {entry.dtype}); save the checkpoint again without partitions."
      )
    data = self._shards[entry.shard][entry.offset :][: entry.size]
    dtype = np.dtype(DTYPES[entry.dtype])
    if entry.size != math.prod(entry.shape) * dtype.itemsize:
      raise errors.UserError(
        f"{self.prefix}: {name} has {entry.size} bytes, which is not "
        f"{entry.shape} of {dtype}; the index is damaged: copy it again."
      )
    if masked_crc32c(data) != entry.checksum:
      raise errors.UserError(
        f"{self.prefix}.data-*: the values of {name} do not have the checksum "
        "in the index; the file is damaged: copy it again."
      )
    try:
      return np.frombuffer(data, dtype).reshape(entry.shape)
    except ValueError as error:  # Too many axes, or one that is too long.
      raise errors.UserError(
        f"{self.prefix}: {name} has a shape that no array has ({error}); the "
        "index is damaged: copy it again."
      ) from None

  def __contains__(self, name: object) -> bool:
    return name in self._entries  # By default it would be read.

  def __iter__(self) -> Iterator[str]:
    return iter(self._entries)

  def __len__(self) -> int:
    return len(self._entries)


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
  """CRC-32C of bytes [size] as LevelDB and TensorFlow store it: masked."""
  value = google_crc32c.value(data)
  return ((value >> 15 | value << 17) + _CRC_OFFSET) & 0xFFFFFFFF


def _map_file(path: str) -> NDArray[np.uint8]:
  if not os.path.exists(path):
    raise errors.UserError(f"{path} is missing; copy all of the checkpoint.")
  is_empty = os.path.getsize(path) == 0  # Which cannot be mapped.
  return np.zeros(0, np.uint8) if is_empty else np.memmap(path, np.uint8, "r")


def _read_index(path: str) -> tuple[dict[str, Entry], int]:
  """The entries and the number of data files."""
  try:
    records = dict(_table_records(pathlib.Path(path).read_bytes(), path))
    header = _fields(records.pop(b""))
    entries = {
      name.decode(): _parse_entry(message) for name, message in records.items()
    }
    # Big-endian (little is not stored), or more files than variables.
    if header[2] or header[1][0] > len(entries):
      raise ValueError
    return entries, header[1][0]
  except FileNotFoundError:
    raise errors.UserError(
      f"{path} is missing; --source needs a checkpoint of the format V2, a "
      "prefix with PREFIX.index and PREFIX.data-*."
    ) from None
  except (IndexError, KeyError, TypeError, ValueError, struct.error):
    raise errors.UserError(
      f"{path} is not an index of a TensorFlow checkpoint, or is truncated; "
      "copy it again."
    ) from None


def _table_records(table: bytes, path: str) -> Iterator[tuple[bytes, bytes]]:
  """Yields key and value of each record of a LevelDB table."""
  footer = table[-FOOTER_SIZE:]
  if struct.unpack("<Q", footer[-8:])[0] != TABLE_MAGIC:
    raise ValueError
  _, at = _varints(footer, 0, 2)  # The meta-index, which is empty.
  for _, handle in _block_records(_block(table, footer[at:], path)):
    yield from _block_records(_block(table, handle, path))


def _block(table: bytes, handle: bytes, path: str) -> bytes:
  """Returns a block after checking its checksum."""
  (offset, size), _ = _varints(handle, 0, 2)
  content = table[offset : offset + size + 1]  # Includes the byte of the type.
  stored = table[offset + size + 1 : offset + size + 5]
  if masked_crc32c(content) != int.from_bytes(stored, "little"):
    raise errors.UserError(
      f"{path} does not match its own checksum; it is damaged: copy it again."
    )
  if content[-1]:
    raise ValueError  # Compressed; TensorFlow never writes that.
  return content[:-1]


def _block_records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
  """Yields key and value; keys share prefixes with their predecessors."""
  [num_restarts] = struct.unpack("<I", block[-4:])
  end = len(block) - 4 * (num_restarts + 1)
  at = 0
  key = b""
  while at < end:
    (shared, own, length), at = _varints(block, at, 3)
    key = key[:shared] + block[at : at + own]
    if len(key) > _LONGEST_NAME:
      raise ValueError
    at += own
    yield key, block[at : at + length]
    at += length


def _parse_entry(message: bytes) -> Entry:
  """Reads a BundleEntryProto."""
  fields = _fields(message)
  dims = _fields(fields[2][0])[2] if fields[2] else []
  scalars = [fields[number][:1] or [0] for number in (1, 3, 4, 5, 6)]
  sizes = [_fields(dim)[1][:1] or [0] for dim in dims]
  if not all(isinstance(value, int) for [value] in scalars + sizes):
    raise TypeError  # Bytes instead of a number.
  shape = tuple(size for [size] in sizes)
  values = (value for [value] in scalars)
  return Entry._make((*values, shape, bool(fields[7])))


def _fields(message: bytes) -> Fields:
  """Fields of a protocol buffer by number; nested messages stay bytes."""
  result: Fields = collections.defaultdict(list)
  at = 0
  while at < len(message):
    [tag], at = _varints(message, at, 1)
    value: int | bytes
    if tag & 7 == 5:
      value = struct.unpack_from("<I", message, at)[0]
      at += 4
    elif tag & 7 == 0:
      [value], at = _varints(message, at, 1)
    elif tag & 7 == 2:
      [length], at = _varints(message, at, 1)
      value = message[at : at + length]
      at += length
    else:
      raise ValueError
    result[tag >> 3].append(value)
  return result


def _varints(data: bytes, at: int, count: int) -> tuple[list[int], int]:
  """The next numbers, and where they end; each byte holds seven bits."""
  numbers = []
  for _ in range(count):
    end = at
    while data[end] & 0x80:
      end += 1
    if end - at > 9:
      raise ValueError  # Longer than any 64-bit number.
    bits = [(byte & 0x7F) << 7 * i for i, byte in enumerate(data[at : end + 1])]
    numbers.append(sum(bits))
    at = end + 1
  return numbers, at
