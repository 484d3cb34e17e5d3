"""Folders on disk and in buckets: `gs://BUCKET/PATH` wherever a folder goes.

The small files of a bucket's folder, such as logs and results, are read and
written in a copy on disk. It is downloaded when it is first needed, and
`publish` uploads what has changed. A bucket cannot append to a file, and each
process has copies of its own, so none overwrites what another one writes.

Two kinds of files do not go through a copy: checkpoints, which Orbax writes to
the bucket itself, and token files, whose copies outlive the process (`cached`).
"""

import atexit
import contextlib
import errno
import logging as standard_logging
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO

import fsspec
from absl import logging
from etils import epath

from transformer_xl import errors

_SCHEME = "gs://"
_NOT_COPIED = ("checkpoints", "damaged", "profile", "wandb")
_TEMPORARY = (".tmp", ".lock")
# Bytes left for the paths below a workdir, such as a study's trial and in it
# checkpoints/STEP.orbax-checkpoint-tmp/params.orbax-checkpoint-tmp/
# ocdbt.process_0/d/HASH.
_BELOW_WORKDIR = 512
_OF_MACOS = ".DS_Store"


class _Copy:
  """The copy of one folder, and what the bucket has of it."""

  def __init__(self, address: str):
    self._address = epath.Path(address)
    self.path = tempfile.mkdtemp(prefix="transformer_xl.")
    self._published: dict[str, tuple[int, int]] = {}
    atexit.register(self._remove)
    names = [*_files(address)]
    if not names:  # The folder is new; the bucket may be missing as well.
      _filesystem().ls(errors.bucket(address))
    for name in names:
      self.download(name)

  def download(self, name: str) -> None:
    """Replaces one file, by its path in the folder."""
    target = pathlib.Path(self.path, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    source = self._address / name
    target.write_bytes(source.read_bytes())
    times = (source.stat().mtime,) * 2
    os.utime(target, times)  # The same in every copy.
    self._published[name] = _state(target)

  def upload(self) -> None:
    """Uploads the files that have changed."""
    root = pathlib.Path(self.path)
    # A prepared dataset is known by its `meta.json`, which so comes last.
    paths = sorted(root.rglob("*"), key=lambda p: (p.name == "meta.json", p))
    for path in paths:
      if path.is_dir() or path.suffix in _TEMPORARY:
        continue
      try:
        self._upload(path, str(path.relative_to(root)))
      except FileNotFoundError:
        if path.exists():
          raise
        # A tracker's own thread may have removed it meanwhile.

  def _upload(self, path: pathlib.Path, name: str) -> None:
    """Uploads a file if it has changed."""
    state = _state(path)
    if self._published.get(name) != state:
      with path.open("rb") as file, (self._address / name).open("wb") as to:
        shutil.copyfileobj(file, to)
      self._published[name] = state

  def keep(self) -> None:
    """Leaves the copy on disk when the process ends."""
    atexit.unregister(self._remove)

  def _remove(self) -> None:
    shutil.rmtree(self.path, ignore_errors=True)


_copies: dict[str, _Copy] = {}


def configure() -> None:
  """Sets up the libraries of buckets, when a command starts."""
  # What other processes write has to be seen at once.
  fsspec.config.conf.setdefault("gs", {}).setdefault(
    "use_listings_cache", False
  )
  # An experiment of gcsfs that asks another service about each bucket first.
  os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
  # What it logs with a traceback is raised as well.
  standard_logging.getLogger("gcsfs").setLevel(standard_logging.CRITICAL)


def is_bucket(path: str) -> bool:
  """Whether a path is an address in a bucket."""
  return path.startswith(_SCHEME)


def absolute(path: str) -> str:
  """The absolute path; addresses stay."""
  return path.rstrip("/") if is_bucket(path) else os.path.abspath(path)


def is_below(path: str, folder: str) -> bool:
  """Whether a path is in a folder, or in one of the folders in it."""
  return absolute(path).startswith(absolute(folder) + "/")


def local(folder: str) -> str:
  """The folder itself, or the copy on disk of a bucket's folder.

  A folder that does not exist yet is an empty copy.

  Raises:
    UserError: the bucket cannot be read.
  """
  return _copy(absolute(folder)).path if is_bucket(folder) else folder


def settle(folder: str, name: str) -> None:
  """Waits until what was appended to a file of a folder is on the disk."""
  path = os.path.join(local(folder), name)
  if os.path.exists(path):
    with open(path, "rb") as file:
      os.fsync(file.fileno())


def forget(folder: str) -> None:
  """Lets the next `local` download the bucket's folder again."""
  if is_bucket(folder):
    _copies.pop(absolute(folder), None)


def refresh(folder: str, name: str) -> None:
  """Downloads one small file again, which another process may have changed.

  Raises:
    UserError: the bucket cannot be read.
  """
  if is_bucket(folder):
    with (
      errors.of_bucket("read", folder),
      contextlib.suppress(FileNotFoundError),
    ):
      _copy(absolute(folder)).download(name)


def publish(folder: str, *, is_last: bool = False) -> None:
  """Uploads what has changed in the copy of a bucket's folder.

  Raises:
    UserError: the bucket refuses. If this is the last call of the process, the
      copy stays on disk.
  """
  if not is_bucket(folder):
    return
  copy = _copy(absolute(folder))
  try:
    with errors.of_bucket("write to", folder):
      copy.upload()
  except errors.UserError as error:
    if not is_last:
      raise
    copy.keep()
    raise errors.UserError(
      f"{error} What this command wrote is in {copy.path}."
    ) from error


def require_writable(folder: str) -> None:
  """Refuses a folder to which results could not be written later.

  A small file is written to a bucket and deleted again. On disk nothing is
  made: the nearest folder that exists has to be writable.

  Raises:
    UserError: the bucket does not exist, or refuses; or the folder is a link to
      nothing.
    OSError: the folder on disk is below a file, or cannot be written.
  """
  if is_bucket(folder):
    probe = epath.Path(folder) / f".probe.{secrets.token_hex(4)}"
    with errors.of_bucket("write to", folder):
      probe.write_text("")
      probe.unlink()
    return
  path = pathlib.Path(folder).absolute()
  if path.is_symlink() and not path.exists():
    raise errors.UserError(
      f"{folder} is a link to {os.readlink(path)}, which does not exist; make "
      "that folder, or delete the link."
    )
  nearest = next(each for each in (path, *path.parents) if each.exists())
  number = None
  if not nearest.is_dir():
    number = errno.ENOTDIR
  elif os.statvfs(nearest).f_flag & os.ST_RDONLY:
    number = errno.EROFS
  elif not os.access(nearest, os.W_OK | os.X_OK):
    number = errno.EACCES
  if number is not None:
    raise OSError(number, os.strerror(number), folder)


def require_checkpoint_path(folder: str) -> None:
  """Refuses a folder in which checkpoints could not be saved or read.

  Raises:
    UserError: its absolute path is not UTF-8, is too long, or has names that
      the libraries of checkpoints take for something else.
  """
  path = absolute(folder)
  problem = None
  try:
    length = len(path.encode("utf-8"))
  except UnicodeEncodeError:
    problem = "is not UTF-8"
  else:
    longest = os.pathconf("/", "PC_PATH_MAX") - _BELOW_WORKDIR
    parts = path.removeprefix(_SCHEME).split("/")
    # Orbax looks for the address of a bucket anywhere in a path.
    if any(name.endswith("gs:") for name in parts):
      problem = "has a name that ends in gs:, as the address of a bucket does"
    elif is_bucket(path):
      pass
    elif length > longest:
      problem = f"has {length} bytes, more than {longest}"
    elif "\\" in path:  # Tensorstore takes it for a slash.
      problem = "has a backslash"
    elif any(name.endswith(".__lock") for name in parts):
      problem = "has a name that ends in .__lock, as Tensorstore's locks do"
  if problem is not None:
    raise errors.UserError(
      f"the path {path} {problem}, and no checkpoint could be saved or read "
      "there; rename it, or name another folder."
    )


def names(folder: str) -> list[str]:
  """Names of what is in a folder; none if there is no such folder.

  The file that the Finder of macOS puts into every folder that it shows does
  not count: to its user, such a folder is empty.
  """
  if is_bucket(folder):
    with errors.of_bucket("read", folder):
      return [name for name, _ in _entries(absolute(folder))]
  if not os.path.isdir(folder or "."):
    return []
  return [name for name in os.listdir(folder or ".") if name != _OF_MACOS]


def remove_empty_folder(folder: str) -> None:
  """Removes a folder on disk in which there are no `names`.

  Raises:
    OSError: there is no such folder, or it holds something.
  """
  pathlib.Path(folder, _OF_MACOS).unlink(missing_ok=True)
  os.rmdir(folder)


def expanded(path: str | os.PathLike[str]) -> str:
  """A path with the user's home in the place of `~`.

  Raises:
    UserError: the home is not known, as in a container whose user has no entry
      and no HOME, and there is no file or folder of this name.
  """
  address = os.path.expanduser(path)
  home, *_ = address.split(os.sep, 1)
  if home.startswith("~") and not os.path.exists(home):
    raise errors.UserError(
      f"{os.fspath(path)}: the home folder of {home} is not known; give the"
      " path without ~, or set HOME."
    )
  return address


def cache() -> pathlib.Path:
  """The folder of what can be made again, by default in `~/.cache`."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  return pathlib.Path(caches, "transformer_xl")


def cached(folder: str, name: str, key: str) -> str:
  """The path on disk of a large file in a folder.

  One in a bucket is copied once and shared by all processes: the copy is known
  by the `key`, the SHA-256 that the file should have, or one of all that it
  depends on. The caller compares. Copies are in XDG_CACHE_HOME, by default
  `~/.cache`.

  Raises:
    UserError: the bucket cannot be read.
  """
  if not is_bucket(folder):
    return os.path.join(folder, name)
  source = f"{absolute(folder)}/{name}"
  target = cache() / key / name
  if not target.exists():
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{secrets.token_hex(4)}.part")
    logging.info("Copying %s to %s.", source, target)
    try:
      with errors.of_bucket("read", source):
        _filesystem().get_file(source, str(part))
      os.replace(part, target)
    finally:
      part.unlink(missing_ok=True)
  return str(target)


def read_text(path: str) -> str:
  """The content of a file on disk or in a bucket, in UTF-8.

  Raises:
    FileNotFoundError: there is none.
    UserError: the bucket cannot be read.
  """
  with errors.of_bucket("read", path, unless=FileNotFoundError):
    return epath.Path(path).read_text()


def create_text(path: str, text: str) -> None:
  """Writes a new file, of several processes in one of them only.

  Raises:
    FileExistsError: there is one.
  """
  if is_bucket(path):
    with errors.of_bucket("write to", path):
      _filesystem().pipe_file(path, text.encode(), mode="create")
    return
  with open(path, "x", encoding="utf-8") as file:
    file.write(text)


def write_text(path: str, text: str) -> None:
  """Writes a file in UTF-8, completely or not at all; see `write_bytes`."""
  write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
  """Writes a file on disk or in a bucket completely or not at all.

  On disk each process writes a new file of its own. So the last of several
  wins, and a link that somebody has put there is replaced, not followed.

  Raises:
    UserError: the bucket refuses.
  """
  if is_bucket(path):
    with errors.of_bucket("write to", path):
      epath.Path(path).write_bytes(content)
    return
  with replacing(path) as file:
    file.write(content)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
  """Opens a new file on disk that takes the place of `path` once it is whole.

  After an exception there is none, and `path` is as it was.
  """
  folder, name = os.path.split(path)
  os.makedirs(folder, exist_ok=True)
  temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
  try:
    with open(temporary, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(temporary)
    raise


def move(source: str, target: str) -> None:
  """Moves a folder to a path where there is none.

  Raises:
    UserError: the bucket refuses; nothing is lost.
  """
  if not is_bucket(source):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.move(source, target)
    return
  root = epath.Path(source)  # A bucket has no folders that it could rename.
  with errors.of_bucket("move", source):
    for name in _files(source, leave_out=()):
      (root / name).copy(epath.Path(target) / name)
    root.rmtree()


def _copy(address: str) -> _Copy:
  if address not in _copies:
    with errors.of_bucket("read", address):
      _copies[address] = _Copy(address)
  return _copies[address]


def _filesystem() -> fsspec.AbstractFileSystem:
  return fsspec.filesystem("gs")


def _files(
  folder: str, *, leave_out: tuple[str, ...] = _NOT_COPIED
) -> Iterator[str]:
  """Paths, inside a folder, of all files in it and in its folders."""
  for name, is_folder in _entries(folder):
    if leave_out and (name in leave_out or name[0] == "."):
      continue
    if is_folder:
      inside = _files(f"{folder}/{name}", leave_out=leave_out)
      yield from (f"{name}/{path}" for path in inside)
    elif not name.endswith(".npy") or not leave_out:
      yield name


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
  """Names in a bucket's folder, and whether they are folders.

  Epath's `is_dir` would not do: if the bucket does not answer, it is False.
  """
  with contextlib.suppress(FileNotFoundError):
    for entry in _filesystem().ls(folder, detail=True):
      path = f"{_SCHEME}{entry['name'].rstrip('/')}"
      if path != folder:  # A file, or the mark of an empty folder.
        yield path.rpartition("/")[2], entry["type"] == "directory"


def _state(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_size, status.st_mtime_ns
