"""One training run at a time in a folder."""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator

import filelock
import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_xl import errors

_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF)
_SHARING_SECONDS = 10.0  # Until a new file is seen on all hosts.


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
  """Makes a folder and keeps other runs out of it.

  The lock is a file in the folder, removed at the end. A killed process holds
  it no longer. Of several processes the first locks for all. File systems
  without locks keep nobody out. All processes must see the same folder.

  Raises:
    UserError: another run is in it, or several processes do not share it.
  """
  os.makedirs(folder, exist_ok=True)
  if jax.process_index() > 0:
    _require_shared(folder)
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
    _require_shared(folder)
    yield
  finally:
    if lock.is_locked:  # Removed while it is held, so that nobody waits on it.
      os.unlink(lock.lock_file)
      lock.release()


def _require_shared(folder: str) -> None:
  """Without this, the first save waits for ever for the other processes."""
  if jax.process_count() == 1:
    return
  number = np.asarray(secrets.randbits(31), np.int32)
  name = f".shared.{int(multihost_utils.broadcast_one_to_all(number)):08x}"
  path = os.path.join(folder, name)
  if jax.process_index() == 0:
    open(path, "x").close()
  multihost_utils.sync_global_devices("a file is in the workdir")
  end = time.monotonic() + _SHARING_SECONDS
  while not os.path.exists(path) and time.monotonic() < end:
    time.sleep(0.1)
  appears = np.asarray(os.path.exists(path))
  seen = multihost_utils.process_allgather(appears)
  if jax.process_index() == 0:
    os.unlink(path)
  blind = np.flatnonzero(~seen).tolist()
  if blind:
    raise errors.UserError(
      f"processes {blind} do not see what process 0 writes to {folder}, and "
      "each writes its part of a checkpoint: set --workdir to a folder that "
      "all hosts share, such as NFS or a bucket mounted with gcsfuse."
    )
