"""Reads files of `torch.save` without PyTorch and without running code.

It reads both formats: the zip archive of PyTorch 1.6 and later, and the earlier
sequence of pickles. The object may be a state dict, a dictionary that holds
one, or a whole pickled module.
"""

import functools
import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from transformer_xl import errors
from transformer_xl.formats import inert_pickle

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# By the name of a storage without its ending "Storage".
DTYPES = {"Double": "f8", "Float": "f4", "Half": "f2", "Bool": "?"}
DTYPES |= {"Byte": "u1", "Char": "i1", "Short": "i2", "Int": "i4", "Long": "i8"}
DTYPES |= {"BFloat16": ml_dtypes.bfloat16}
STATE_KEYS = ("model_state", "state_dict", "model")
_MAX_MODULES = 100_000


class Storage(NamedTuple):
  """A flat array of numbers; tensors are views of it."""

  key: str
  dtype: np.dtype
  size: int  # In numbers, not bytes.


class TorchFile(NamedTuple):
  """The content of a file."""

  root: inert_pickle.Pickled  # Placeholders; see `tensors` and `attributes`.
  values: dict[str, np.ndarray]  # Storages by key.
  path: str

  def tensors(self) -> dict[str, np.ndarray]:
    """Returns the tensors of the state dict or module by their dotted names."""
    root = self.root
    try:
      named = inert_pickle.mapping(root)
      for key in STATE_KEYS:
        if key in named and "_modules" not in named:
          root = named[key]
      found = dict(self._walk(root, "", itertools.count()))
    except inert_pickle.FAILURES:
      raise _damaged(self.path) from None
    if not found:
      raise errors.UserError(
        f"{self.path} holds neither a state dict nor a module; name the file "
        "with the weights (model.pt, pytorch_model.bin)."
      )
    return found

  def attributes(self, *path: str) -> inert_pickle.Fields:
    """Returns the attributes of a submodule; empty for a state dict.

    Raises:
      LookupError: there is no such submodule.
      UserError: the file is damaged.
    """
    try:
      named = inert_pickle.mapping(self.root)
      if "_modules" not in named:
        return {}
      for part in path:
        modules = inert_pickle.mapping(named["_modules"])
        named = inert_pickle.mapping(modules[part])
      return named
    except LookupError:
      raise
    except inert_pickle.FAILURES:
      raise _damaged(self.path) from None

  def array(self, value: inert_pickle.Pickled) -> np.ndarray | None:
    """Returns a pickled tensor or parameter of any shape; otherwise None."""
    name = getattr(value, "origin", "").rpartition(".")[2]
    if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
      return self.array(value.arguments[0])
    if name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
      return self.view(*value.arguments[:4])
    return None

  def view(
    self,
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
  ) -> np.ndarray:
    """Part of a storage in this shape; offset and strides count numbers."""
    values = self.values[storage.key]
    # Strides of 0 could make a small storage huge.
    too_many = math.prod(shape) > len(values)
    last = offset + sum(
      (size - 1) * stride for size, stride in zip(shape, strides, strict=True)
    )
    inside = min((offset, *shape, *strides), default=0) >= 0
    if too_many or (0 not in shape and (not inside or last >= len(values))):
      raise errors.UserError(
        f"{self.path} has a tensor that reaches outside its values; the file "
        "is damaged: copy it again."
      )
    strides = tuple(stride * values.itemsize for stride in strides)
    view = np.lib.stride_tricks.as_strided(values[offset:], shape, strides)
    return np.ascontiguousarray(view).reshape(shape)

  def _walk(
    self, value: inert_pickle.Pickled, prefix: str, visits: Iterator[int]
  ) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and tensors of a state dict, or of a module recursively."""
    if next(visits) > _MAX_MODULES:
      raise ValueError  # Modules that contain one another.
    named = inert_pickle.mapping(value)
    if "_modules" not in named:
      for name, item in named.items():
        tensor = self.array(item)
        if tensor is not None:
          yield f"{prefix}{name}", tensor
      return
    for part in ("_parameters", "_buffers"):
      yield from self._walk(named[part], prefix, visits)
    for name, module in inert_pickle.mapping(named["_modules"]).items():
      yield from self._walk(module, f"{prefix}{name}.", visits)


def read(path: str) -> TorchFile:
  """Reads a file of either format.

  Raises:
    UserError: the file is missing, truncated, damaged or of another format.
  """
  try:
    with open(path, "rb") as file:
      if zipfile.is_zipfile(path):
        return _read_zip(file, path)
      return _read_legacy(file, path)
  except FileNotFoundError:
    raise errors.UserError(f"{path} is missing; check --source.") from None
  except (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    RuntimeError,
    *inert_pickle.FAILURES,
  ):
    raise _damaged(path) from None


def _damaged(path: str) -> errors.UserError:
  return errors.UserError(
    f"{path} is damaged, truncated or was not written by torch.save; copy "
    "it again, or choose another --format."
  )


def _read_zip(file: BinaryIO, path: str) -> TorchFile:
  with zipfile.ZipFile(file) as archive:
    # PyTorch never compresses, so no member expands when it is read.
    if any(i.file_size > i.compress_size for i in archive.infolist()):
      raise ValueError
    names = {name.partition("/")[2]: name for name in archive.namelist()}
    if names.get("byteorder") and archive.read(names["byteorder"]) != b"little":
      raise errors.UserError(
        f"{path} was written by a big-endian machine; save it again on another."
      )
    storages: dict[str, Storage] = {}
    resolve = functools.partial(_resolve, storages)
    pickled = archive.read(names["data.pkl"])
    root = inert_pickle.load(pickled, path, persistent=resolve)
    # Reading all of a member checks its CRC-32.
    values = {
      key: _numbers(archive.read(names[f"data/{key}"]), storage)
      for key, storage in storages.items()
    }
  return TorchFile(root, values, path)


def _read_legacy(file: BinaryIO, path: str) -> TorchFile:
  load = functools.partial(inert_pickle.load, file, path)
  if load() != LEGACY_MAGIC:
    raise ValueError
  load()  # The protocol's version.
  if not inert_pickle.mapping(load())["little_endian"]:
    raise ValueError
  storages: dict[str, Storage] = {}
  root = load(persistent=functools.partial(_resolve, storages))
  values = {}
  for key in load():
    storage = storages[inert_pickle.text(key)]
    size = storage.size * storage.dtype.itemsize
    [count] = struct.unpack("<q", file.read(8))
    if count != storage.size or size > os.fstat(file.fileno()).st_size:
      raise ValueError
    values[storage.key] = _numbers(file.read(size), storage)
  return TorchFile(root, values, path)


def _resolve(
  storages: dict[str, Storage], reference: inert_pickle.Pickled
) -> Storage | inert_pickle.Pickled:
  """Resolves a pickle's reference to a storage, which it collects."""
  if inert_pickle.text(reference[0]) == "module":  # With its source text.
    return reference[1]
  _, kind, key, _, size, *view = reference
  if view and view[0] is not None:
    raise ValueError("a view of a storage, which PyTorch 0.3 wrote")
  key = inert_pickle.text(key)
  if not isinstance(key, str):
    raise ValueError("a storage without a name")
  dtype = np.dtype(DTYPES[kind.__name__.removesuffix("Storage")])
  storage = Storage(key, dtype, size)
  return storages.setdefault(key, storage)


def _numbers(data: bytes, storage: Storage) -> np.ndarray:
  values = np.frombuffer(data, storage.dtype)
  if len(values) != storage.size:
    raise ValueError
  return values
