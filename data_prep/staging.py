"""A dataset while it is written: in `NAME.partial`, beside `NAME`.

The finished folder is renamed, so `NAME` is either whole or absent. What a
killed process leaves in `NAME.partial` is deleted by the next preparation.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import filelock

from transformer_xl import errors


@contextlib.contextmanager
def staged(final: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields an empty folder that becomes `final` unless an exception is raised.

  UserError if `final` holds something, or while another process makes it.
  """
  if final.exists() and (not final.is_dir() or any(final.iterdir())):
    raise errors.UserError(
      f"{final} holds something else and is left as it is; delete it to"
      " prepare it again, or choose another --name."
    )
  partial = final.with_name(final.name + ".partial")
  partial.mkdir(parents=True, exist_ok=True)
  lock = filelock.FileLock(partial / "lock")
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    raise errors.UserError(
      f"another process is preparing {final}; wait, or give another --name."
    ) from None
  try:
    # The lock stays outside of the folder that is renamed, so that it is held
    # until the dataset has its name.
    folder = partial / "dataset"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    folder.rename(final)  # Refused if there is something by now.
  finally:
    shutil.rmtree(partial, ignore_errors=True)
    lock.release()


def write(path: pathlib.Path, content: bytes) -> None:
  """Writes a file and waits until it is on the disk."""
  with open(path, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def read_meta(final: pathlib.Path) -> dict[str, Any]:
  """Returns meta.json as it was written; empty if there is no dataset."""
  try:
    return json.loads((final / "meta.json").read_text("utf-8"))
  except (FileNotFoundError, NotADirectoryError, ValueError):
    return {}
