"""One training run at a time in a folder."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

import jax

from transformer_xl import errors

_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
  """Makes a folder and keeps other runs out of it.

  The folder itself is locked, so nothing is left behind, and the end of the
  process frees it however it comes. Of several processes the first locks for
  all. File systems without locks keep nobody out.

  Args:
    folder: its path.

  Raises:
    UserError: another run is in it.
  """
  os.makedirs(folder, exist_ok=True)
  if jax.process_index() > 0:
    yield
    return
  handle = os.open(folder, os.O_RDONLY)
  try:
    _lock(handle, folder)
    yield
  finally:
    os.close(handle)


def _lock(handle: int, folder: str) -> None:
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise errors.UserError(
      f"another process trains in {folder}, and two would overwrite each "
      "other's checkpoints: wait for its end, which a save may delay, or set "
      "another --workdir."
    ) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
