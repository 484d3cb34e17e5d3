"""One-dimensional .npy files, written and read in parts."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_BLOCK = 1 << 20


def blocks(path: pathlib.Path) -> Iterator[NDArray[Any]]:
  """Yields the numbers of a file in parts [count].

  One part at a time is in memory; a memory map would count as resident.
  """
  with open(path, "rb") as file:
    npy.read_magic(file)
    (length,), _, dtype = npy.read_array_header_1_0(file)
    for start in range(0, length, _BLOCK):
      yield np.fromfile(file, dtype, count=min(_BLOCK, length - start))


class ArrayFile:
  """Appends numbers of one dtype; memory use does not grow with length."""

  def __init__(self, path: pathlib.Path, dtype: Any):
    """Creates an empty array; it is complete once the file is closed."""
    self._dtype = np.dtype(dtype)
    self.length = 0
    self._file = open(path, "w+b")  # noqa: SIM115
    self._write_header()

  def append(self, numbers: NDArray[Any]) -> None:
    """Writes numbers [n] behind those written before."""
    self._file.write(np.ascontiguousarray(numbers, self._dtype).data)
    self.length += len(numbers)

  def drop_last(self) -> None:
    """Removes the last number."""
    self._file.seek(-self._dtype.itemsize, os.SEEK_END)
    self._file.truncate()
    self.length -= 1

  def __enter__(self) -> "ArrayFile":
    return self

  def __exit__(self, *unused: object) -> None:
    """Writes the final length into the header and waits for the disk."""
    with self._file:
      self._write_header()
      self._file.flush()
      os.fsync(self._file.fileno())

  def _write_header(self) -> None:
    # NumPy pads the header so that any length fits into the same bytes.
    self._file.seek(0)
    npy.write_array_header_1_0(
      self._file,
      {
        "descr": npy.dtype_to_descr(self._dtype),
        "fortran_order": False,
        "shape": (self.length,),
      },
    )
