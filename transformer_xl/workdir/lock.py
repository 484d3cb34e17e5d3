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
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.processes import others
from transformer_xl.workdir import lease

_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF)
_SHARING_SECONDS = 10.0  # Until a new file is seen on all hosts.


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
  """Makes a folder and keeps other runs out of it.

  The lock is a file in the folder, removed at the end. A killed process holds
  it no longer; in a bucket that shows after `lease.LEFT_AFTER_SECONDS`. The
  first of several processes locks for all, and all must see the same folder.
  File systems without locks keep nobody out. What was written to the copy of a
  bucket's folder is uploaded before the lock is removed.

  Raises:
    UserError: another run is in it, or several processes do not share it; in
      all processes.
    OSError: the lock cannot be written; in the first process, and a UserError
      in all others.
  """
  if not storage.is_bucket(folder):
    os.makedirs(folder, exist_ok=True)
  hold = _bucket_lock if storage.is_bucket(folder) else _file_lock
  refusal = None
  with contextlib.ExitStack() as held:
    if jax.process_index() == 0:
      try:
        held.enter_context(hold(folder))
      except Exception as error:  # Raised once all processes know of it.
        refusal = error
    _require_held(refusal, folder)
    storage.forget(folder)  # The last run may have written until now.
    _require_shared(folder)
    try:
      yield
    finally:
      storage.publish(folder, is_last=True)


@contextlib.contextmanager
def _file_lock(folder: str) -> Iterator[None]:
  # A file alone would say that a killed run of another host still trains.
  path = os.path.join(folder, ".lock")
  lock = filelock.FileLock(path, fallback_to_soft=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    raise _taken(folder) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
  try:
    yield
  finally:
    if lock.is_locked:  # Removed while it is held, so that nobody waits on it.
      with contextlib.suppress(FileNotFoundError):  # Somebody was first.
        os.unlink(lock.lock_file)
      lock.release()


@contextlib.contextmanager
def _bucket_lock(folder: str) -> Iterator[None]:
  path = os.path.join(storage.absolute(folder), ".lock")
  leases = lease.Leases()
  with contextlib.ExitStack() as held:
    with errors.of_bucket("write to", folder):
      is_first = True
      while not held.enter_context(leases.take(path)):
        if leases.is_renewed(path):
          raise _taken(folder)
        if is_first:
          logging.info(
            "A run on %s was in %s; waiting up to %.0f s to see if it still "
            "is.",
            leases.holder(path),
            folder,
            lease.LEFT_AFTER_SECONDS,
          )
        is_first = False
        time.sleep(min(1.0, lease.LEFT_AFTER_SECONDS / 10))
    yield


def _taken(folder: str) -> errors.UserError:
  return errors.UserError(
    f"another process trains in {folder}, and two would overwrite each "
    "other's checkpoints: wait for its end, which a save may delay, or set "
    "another --workdir."
  )


def _require_held(refusal: Exception | None, folder: str) -> None:
  """Raises in all processes what kept the first one out."""
  # Process 0 may wait for a lease, for longer than devices wait for others.
  others.gather("process 0 has tried")
  is_refused = np.asarray(refusal is not None)
  if jax.process_count() > 1:
    is_refused = multihost_utils.broadcast_one_to_all(is_refused)
  if is_refused:
    raise refusal or errors.UserError(
      f"process 0 could not lock {folder}; its own line says why."
    )


def _require_shared(folder: str) -> None:
  """Raises a UserError unless all processes see the same folder.

  Otherwise the first save would wait for ever for the other processes.
  """
  if jax.process_count() == 1:
    return
  number = np.asarray(secrets.randbits(31), np.int32)
  name = f".shared.{int(multihost_utils.broadcast_one_to_all(number)):08x}"
  path = epath.Path(folder) / name
  if jax.process_index() == 0:
    path.write_text("")
  multihost_utils.sync_global_devices("a file is in the workdir")
  end = time.monotonic() + _SHARING_SECONDS
  while not path.exists() and time.monotonic() < end:
    time.sleep(0.1)
  appears = np.asarray(path.exists())
  seen = multihost_utils.process_allgather(appears)
  if jax.process_index() == 0:
    path.unlink()
  blind = np.flatnonzero(~seen).tolist()
  if blind:
    raise errors.UserError(
      f"processes {blind} do not see what process 0 writes to {folder}, and "
      "each writes its part of a checkpoint: set --workdir to a folder that "
      "all hosts share, such as gs://BUCKET/FOLDER or NFS."
    )
