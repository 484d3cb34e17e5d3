"""One training run at a time in a folder."""

import contextlib
import errno
import os
from collections.abc import Iterator

import filelock
import jax

from transformer_xl import errors

_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
  """Makes a folder and keeps other runs out of it.

  The lock is a file in the folder, removed at the end. A killed process holds
  it no longer. Of several processes the first locks for all. File systems
  without locks keep nobody out.

  Args:
    folder: its path.

  Raises:
    UserError: another run is in it.
  """
  os.makedirs(folder, exist_ok=True)
  if jax.process_index() > 0:
    yield
    return
  lock = filelock.FileLock(os.path.join(folder, ".lock"))
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    raise errors.UserError(
      f"another process trains in {folder}, and two would overwrite each "
      "other's checkpoints: wait for its end, which a save may delay, or set "
      "another --workdir."
    ) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
  try:
    yield
  finally:
    if lock.is_locked:  # Removed while it is held, so that nobody waits on it.
      os.unlink(lock.lock_file)
      lock.release()
