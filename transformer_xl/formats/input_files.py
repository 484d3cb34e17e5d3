"""Files and folders that a user names as input: on disk, or in a bucket.

Unlike the folders of `storage`, they may be single files, and of any size.
"""

import atexit
import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from etils import epath

from transformer_xl import errors
from transformer_xl import storage


@contextlib.contextmanager
def on_disk(path: str) -> Iterator[str]:
  """Yields where a file or folder is on disk, also after the block.

  Files in a bucket are copied; the path may be the start of their names, as the
  prefix of a TensorFlow checkpoint is. UserErrors of the block name the bucket.

  Raises:
    UserError: the bucket cannot be read.
  """
  place = path
  if storage.is_bucket(path):
    path = storage.absolute(path)
    place = _copy(path)
  try:
    yield place
  except errors.UserError as error:
    raise errors.UserError(str(error).replace(place, path)) from error


def _copy(path: str) -> str:
  """The copy of a folder, or of the files whose paths begin so."""
  if storage.names(path):
    return storage.local(path)
  folder, start = os.path.split(path)
  scratch = tempfile.mkdtemp(prefix="transformer_xl.")
  atexit.register(shutil.rmtree, scratch, ignore_errors=True)
  # One folder deeper: what lies beside the copy is not theirs.
  target = pathlib.Path(scratch, "files")
  target.mkdir()
  for name in storage.names(folder):
    if name.startswith(start):
      with errors.of_bucket("read", f"{folder}/{name}"):
        (epath.Path(folder) / name).copy(target / name)
  return str(target / start)
