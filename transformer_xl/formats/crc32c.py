"""CRC-32C (Castagnoli) of large buffers, by NumPy.

The checksum is linear over GF(2): a word followed by n zero words equals some
other word in their place. So long rows are folded onto one another, thousands
of words at a time, and only the last row is read byte by byte.
"""

import functools

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # Reflected.
ROW = 4096  # Words folded at once.
_MASK_DELTA = 0xA282EAD8


def checksum(data: bytes | memoryview | NDArray[np.uint8]) -> int:
  """CRC-32C of a buffer of bytes, of any shape."""
  values = np.frombuffer(data, np.uint8)
  register = 0xFFFFFFFF
  num_rows = len(values) // (4 * ROW)
  if num_rows > 1:
    rows = values[: num_rows * 4 * ROW].view("<u4").reshape(num_rows, ROW)
    tail = values[num_rows * 4 * ROW :]
    values = np.concatenate([_fold(rows).view(np.uint8), tail])
    register = 0  # It went into the first word.
  table = _byte_table()
  for value in values.tobytes():
    register = table[(register ^ value) & 0xFF] ^ (register >> 8)
  return register ^ 0xFFFFFFFF


def masked(data: bytes | memoryview | NDArray[np.uint8]) -> int:
  """The checksum as LevelDB and TensorFlow store it; any shape."""
  value = checksum(data)
  return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _fold(rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
  """One row with the checksum of all, the initial register included."""
  low, high = _row_tables()
  state = rows[0].astype(np.uint32)
  state[0] ^= np.uint32(0xFFFFFFFF)
  for row in rows[1:]:
    state = low[state & 0xFFFF] ^ high[state >> 16] ^ row
  return state


@functools.cache
def _byte_table() -> list[int]:
  """What a register's low byte turns into when eight bits leave."""
  table = []
  for value in range(256):
    for _ in range(8):
      value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    table.append(value)
  return table


@functools.cache
def _row_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
  """Words moved by one row of zeros, by their low and their high half."""
  table = _byte_table()

  def skip_byte(word: int) -> int:
    return table[word & 0xFF] ^ (word >> 8)

  columns = [skip_byte(1 << bit) for bit in range(32)]
  for _ in range((4 * ROW).bit_length() - 1):  # 4 * ROW is a power of two.
    columns = [_apply(columns, column) for column in columns]
  return _linear_table(columns[:16]), _linear_table(columns[16:])


def _apply(columns: list[int], word: int) -> int:
  """The product of a matrix over GF(2), given by columns, and a word."""
  result = 0
  for bit, column in enumerate(columns):
    if word >> bit & 1:
      result ^= column
  return result


def _linear_table(columns: list[int]) -> NDArray[np.uint32]:
  """The images of all words of as many bits as there are columns."""
  table = np.zeros(1, np.uint32)
  for column in columns:
    table = np.concatenate([table, table ^ np.uint32(column)])
  return table
