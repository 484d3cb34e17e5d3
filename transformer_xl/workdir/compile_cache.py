"""The folder of compiled programs, which later runs read."""

import os
import stat

from transformer_xl import storage

FOLDER = ".jax_cache"


def folder(workdir: str) -> str:
  """Where the compiled programs of a run are kept.

  Beside the workdir, so that runs share them. What is read from a cache is run,
  so in a folder where everyone writes, such as /tmp, it is in the workdir.
  """
  if storage.is_bucket(workdir):
    return os.path.join(os.path.dirname(storage.absolute(workdir)), FOLDER)
  workdir = os.path.abspath(workdir)
  parent = os.path.dirname(workdir)
  while not os.path.exists(parent):  # Anyone there may make it first.
    parent = os.path.dirname(parent)
  status = os.stat(parent)
  is_open = status.st_mode & stat.S_IWOTH
  is_ours = status.st_uid == os.getuid() and not is_open
  place = os.path.dirname(workdir) if is_ours else workdir
  return os.path.join(place, FOLDER)
