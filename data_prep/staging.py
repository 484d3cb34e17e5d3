"""A dataset while it is written: in `NAME.partial`, beside `NAME`.

The finished folder is renamed, so `NAME` is either whole or absent. What a
killed process leaves in `NAME.partial` is deleted by the next preparation.

For a bucket it is written to a copy on disk. It is known by its `meta.json`,
which is uploaded last, so an interrupted upload leaves no dataset.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import filelock
from etils import epath

from transformer_xl import errors
from transformer_xl import storage

# Suffixes of what an interrupted upload leaves.
_UPLOADED = (".npy", "vocabulary.txt", "vocabulary.json")


class BusyError(errors.UserError):
  """Another process prepares the same dataset, or has just done so."""


class Stage(NamedTuple):
  """The folders where a dataset is made; `scratch` is deleted in any case."""

  folder: pathlib.Path
  scratch: pathlib.Path


def folder_of(data_dir: str, name: str) -> pathlib.Path:
  """The folder of a dataset; an `epath.Path`, which is alike, in a bucket."""
  path: Any = pathlib.Path(storage.expanded(data_dir))
  if storage.is_bucket(str(data_dir)):
    path = epath.Path(data_dir)
  return path / name


def downloads(final: pathlib.Path) -> pathlib.Path:
  """Where archives are kept: beside the dataset; for a bucket, the cache."""
  is_bucket = storage.is_bucket(str(final))
  return (storage.cache() if is_bucket else final.parent) / "downloads"


@contextlib.contextmanager
def staged(final: pathlib.Path) -> Iterator[Stage]:
  """Yields an empty folder that becomes `final` unless an exception is raised.

  UserError if `final` holds something, and BusyError if another process makes
  it, or has just done so.
  """
  address = str(final)
  if os.path.isfile(address) or _strangers(address):
    raise errors.UserError(
      f"{final} holds something else and is left as it is; delete it to"
      " prepare it again, or choose another --name."
    )
  make = _uploaded(final) if storage.is_bucket(address) else _renamed(final)
  with make as stage:
    yield stage


def _strangers(address: str) -> list[str]:
  """What is in a folder already and is in the way of a dataset."""
  names = storage.names(address)
  if not storage.is_bucket(address):
    return names
  return [name for name in names if not name.endswith(_UPLOADED)]


@contextlib.contextmanager
def _uploaded(final: pathlib.Path) -> Iterator[Stage]:
  address = str(final)
  folder = pathlib.Path(storage.local(address))
  cache = downloads(final)
  cache.mkdir(parents=True, exist_ok=True)
  try:
    for path in folder.iterdir():  # What an interrupted upload left.
      path.unlink()
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacked.") as scratch:
      yield Stage(folder, pathlib.Path(scratch))
    storage.publish(address)
  except BaseException:
    storage.forget(address)  # It is not what is in the bucket.
    raise


@contextlib.contextmanager
def _renamed(final: pathlib.Path) -> Iterator[Stage]:
  partial = final.with_name(final.name + ".partial")
  stage = Stage(folder=partial / "dataset", scratch=partial / "unpacked")
  lock = filelock.FileLock(partial / "lock")
  own = {"lock", stage.folder.name, stage.scratch.name}
  strangers = {*storage.names(str(partial))} - own
  if strangers:
    raise errors.UserError(
      f"{partial}, where {final.name} would be made, holds something else "
      f"({', '.join(sorted(strangers)[:3])}) and is left as it is; move it, or "
      "choose another --name."
    )
  partial.mkdir(parents=True, exist_ok=True)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    raise BusyError(
      f"another process is preparing {final}; wait, or give another --name."
    ) from None
  try:
    if _strangers(str(final)):
      # The process that held the lock a moment ago has finished.
      raise BusyError(
        f"another process has prepared {final}; it is left as it is."
      )
    # The lock stays outside of the folder that is renamed, so that it is held
    # until the dataset has its name.
    for folder in stage:
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir()
    yield stage
    if final.exists():
      storage.remove_empty_folder(str(final))  # Refused if it no longer is.
    stage.folder.rename(final)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
    lock.release()


def write(path: pathlib.Path, content: bytes) -> None:
  """Writes a file and waits until it is on the disk."""
  with open(path, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def read_meta(final: pathlib.Path) -> dict[str, object]:
  """Returns meta.json as it was written; empty if it is none or damaged."""
  try:
    path = pathlib.Path(storage.local(str(final)), "meta.json")
    meta = json.loads(path.read_text("utf-8"))
  except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
    return {}
  return meta if isinstance(meta, dict) else {}
