"""Leases: files that say who works on something, and that he still does.

They need nothing of the file system but to create a file in one process only,
so they hold in buckets, and on disks that several hosts share. Who has a lease
renews it; one that nobody renews is left behind and may be taken.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from absl import logging
from etils import epath

from transformer_xl import signals
from transformer_xl import storage

RENEWED_AFTER_SECONDS = 15.0
# A lease that has not changed for so long is left behind, whatever its clock
# says: hosts need not agree on the time.
LEFT_AFTER_SECONDS = 60.0
# Until another process that found the same lease left behind has taken it, too.
_SETTLED_AFTER_SECONDS = 1.0


def path_in(folder: str, name: str) -> str:
  """Makes a folder, unless it is in a bucket; the path of a lease in it."""
  if not storage.is_bucket(folder):
    os.makedirs(folder, exist_ok=True)
  return os.path.join(storage.absolute(folder), name)


class _Seen(NamedTuple):
  """What was read of another one's lease, and when it was first like this."""

  owner: dict
  since: float  # By the clock of this process.
  is_renewed: bool  # It has been another one before.


class Leases:
  """Takes leases, and remembers what it has seen of those of others."""

  def __init__(self) -> None:
    self._seen: dict[str, _Seen] = {}

  @contextlib.contextmanager
  def take(self, path: str) -> Iterator[bool]:
    """Takes a lease until the end of the block, if nobody has it.

    Args:
      path: the lease's file, on disk or in a bucket.

    Yields:
      Whether this process has it. Where it has not, the file is another one's,
      who may have ended: call again until the lease is free, or left behind.

    Raises:
      UserError: the bucket refuses.
      OSError: the file cannot be written.
    """
    owner = {
      "token": secrets.token_hex(8),
      "host": socket.gethostname(),
      "process": os.getpid(),
    }
    if not self._create(path, owner):
      yield False
      return
    is_over = threading.Event()
    renewal = threading.Thread(
      target=_renew, args=(path, owner, is_over), daemon=True
    )
    renewal.start()
    try:
      yield True
    finally:
      is_over.set()
      renewal.join()
      with contextlib.suppress(Exception):  # Left behind, it is soon too old.
        epath.Path(path).unlink()

  @contextlib.contextmanager
  def wait(
    self, path: str, *, until: str, look_seconds: float = 1.0
  ) -> Iterator[None]:
    """Holds a lease in the block, as soon as it is free or left behind.

    Args:
      path: the lease's file, on disk or in a bucket.
      until: what its holder has done then, for a line of the log.
      look_seconds: time between two looks.

    Raises:
      UserError: the bucket refuses.
      OSError: the file cannot be written.
    """
    has_said = False
    while True:
      with self.take(path) as is_ours:
        if is_ours:
          yield
          return
      if not has_said:
        logging.info("Waiting until %s has %s.", self.holder(path), until)
      has_said = True
      time.sleep(look_seconds)

  def is_renewed(self, path: str) -> bool:
    """Whether another one has renewed the lease since it was first seen."""
    return path in self._seen and self._seen[path].is_renewed

  def holder(self, path: str) -> str:
    """The host of another one's lease, in words."""
    owner = self._seen[path].owner if path in self._seen else {}
    return str(owner.get("host", "an unknown host"))

  def _create(self, path: str, owner: dict) -> bool:
    """Writes the file if there is none, or one that is left behind."""
    found = _read(path)
    if found is not None and not self._is_left(path, found):
      return False
    if found is not None:
      epath.Path(path).unlink(missing_ok=True)
    try:
      storage.create_text(path, _content(owner))
    except FileExistsError:
      return False
    if found is None:
      return True
    # Two may find it left behind, and the second unlink the new file.
    time.sleep(_SETTLED_AFTER_SECONDS)
    now = _read(path)
    return now is not None and now.get("token") == owner["token"]

  def _is_left(self, path: str, found: dict) -> bool:
    """Whether nobody has renewed a lease for long, or its process is dead."""
    before = self._seen.get(path)
    if before is None or before.owner != found:
      now = time.monotonic()
      self._seen[path] = _Seen(found, now, is_renewed=before is not None)
    age = time.monotonic() - self._seen[path].since
    return age >= LEFT_AFTER_SECONDS or _is_dead(found)


def _content(owner: dict) -> str:
  return json.dumps(owner | {"renewed": time.time()})


def _is_dead(owner: dict) -> bool:
  """Whether a lease is of a process of this machine that has ended."""
  if owner.get("host") != socket.gethostname():
    return False
  try:
    os.kill(int(owner["process"]), 0)
  except ProcessLookupError:
    return True
  except (OSError, LookupError, TypeError, ValueError):
    return False
  return False


def _read(path: str) -> dict | None:
  """The content of a lease; empty if it is damaged, or just being written."""
  try:
    owner = json.loads(storage.read_text(path))
  except FileNotFoundError:
    return None
  except ValueError:
    return {}
  return owner if isinstance(owner, dict) else {}


def _renew(path: str, owner: dict, is_over: threading.Event) -> None:
  """Shows that the owner is alive; ends the process if it has lost the lease.

  That happens to a machine that was suspended: by now another one may write.
  """
  while not is_over.wait(RENEWED_AFTER_SECONDS):
    try:
      found = _read(path)
      if found is not None and found.get("token") != owner["token"]:
        signals.end(
          f"another process has taken over {os.path.dirname(path)} while this "
          "one was suspended."
        )
      storage.write_text(path, _content(owner))
    except Exception as error:  # The libraries have no common type.
      logging.warning("The lock %s could not be renewed: %s", path, error)
