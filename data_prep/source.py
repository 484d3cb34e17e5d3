"""Sources: a folder, a zip, a tar or a single file, read where they lie.

Members are read as streams and never unpacked by the archive's own paths, so
an archive cannot write anywhere.
"""

import abc
import contextlib
import errno
import functools
import hashlib
import lzma
import os
import pathlib
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import IO

from transformer_xl import errors

# Real text shrinks to a fifth or so. What grows beyond both of these when it
# is unpacked was made to fill the disk.
_MOST_RATIO = 200
_FREE_BYTES = 1 << 28


class Source(abc.ABC):
  """Files by name."""

  def __init__(self, path: pathlib.Path):
    self.path = path

  @abc.abstractmethod
  def names(self) -> list[str]:
    """Returns the names of the regular files, sorted."""

  @abc.abstractmethod
  def _open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Opens one of them."""

  @contextlib.contextmanager
  def open(self, name: str) -> Iterator[IO[bytes]]:
    """Opens a file; UserError if it turns out to be damaged or hostile."""
    with damage_reported(self.path), self._open(name) as stream:
      yield stream

  def find(self, *endings: str) -> str | None:
    """Returns the first file whose path is, or ends in, one of these."""
    for ending in endings:
      for name in self.names():
        if f"/{name}".endswith(f"/{ending}"):
          return name
    return None

  def fingerprint(self) -> str:
    """Returns a string that changes when the source changes."""
    paths = [self.path]
    if self.path.is_dir():
      paths += [self.path / name for name in self.names()]
    stats = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


class Folder(Source):
  """The files of a folder and of the folders in it."""

  def __init__(
    self, path: pathlib.Path, *, skip: Collection[str] = frozenset()
  ):
    """Takes a folder; folders of a name in `skip` are not entered."""
    super().__init__(path)
    self._skip = skip

  def names(self) -> list[str]:
    """Returns the paths within the folder."""
    return self._names

  @functools.cached_property
  def _names(self) -> list[str]:
    found = []
    for root, folders, files in os.walk(self.path):
      folders[:] = [name for name in folders if name not in self._skip]
      found += [pathlib.Path(root, name) for name in files]
    regular = (path for path in found if path.is_file())
    return sorted(p.relative_to(self.path).as_posix() for p in regular)

  def _open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    return open(self.path / name, "rb")


class File(Source):
  """One file, of which the name is all that counts."""

  def names(self) -> list[str]:
    """Returns the file's name."""
    return [self.path.name]

  def _open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    return open(self.path, "rb")


class Zip(Source):
  """The files in a zip archive."""

  def names(self) -> list[str]:
    """Returns the members' paths."""
    return self._names

  @functools.cached_property
  def _names(self) -> list[str]:
    with damage_reported(self.path), zipfile.ZipFile(self.path) as archive:
      # `is_dir` fails where a name is empty.
      names = (info.filename for info in archive.infolist())
      return sorted(name for name in names if not name.endswith("/"))

  @contextlib.contextmanager
  def _open(self, name: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(self.path) as archive:
      info = archive.getinfo(name)
      if info.flag_bits & 1:
        raise zipfile.BadZipFile(f"{name} is encrypted")
      refuse_bomb(self.path, info.file_size, packed=info.compress_size)
      with archive.open(info) as stream:
        yield stream


class Tar(Source):
  """The regular files in a tar archive; links are not followed."""

  def names(self) -> list[str]:
    """Returns the members' paths."""
    return self._names

  @functools.cached_property
  def _names(self) -> list[str]:
    with damage_reported(self.path), tarfile.open(self.path) as archive:
      return sorted(m.name for m in archive if m.isreg())

  @contextlib.contextmanager
  def _open(self, name: str) -> Iterator[IO[bytes]]:
    with tarfile.open(self.path) as archive:
      info = archive.getmember(name)
      refuse_bomb(self.path, info.size, packed=self.path.stat().st_size)
      if (stream := archive.extractfile(info)) is None:
        raise tarfile.ReadError(f"{name} is no regular file")
      with stream:
        yield stream


def locate(path: str) -> Source:
  """Returns the source at a path, by what lies there and not by its name."""
  place = pathlib.Path(path).expanduser()
  if place.is_dir():
    return Folder(place)
  if not place.is_file():
    raise errors.UserError(
      f"--source={path} does not exist; give an archive as published, or a"
      " folder with its files."
    )
  with open(place, "rb") as file:
    start = file.read(4)
  # A zip that was cut short is a zip by its first bytes only.
  if start.startswith(b"PK\x03\x04"):
    return Zip(place)
  if place.name.endswith((".tar.gz", ".tgz", ".tar")):
    return Tar(place)
  return File(place)


def unpack(
  archive: Tar, folder: pathlib.Path, *, wanted: Callable[[str], bool]
) -> Folder:
  """Returns a folder with the wanted members, copied there in one pass.

  For a large archive of many files, which in place would be decompressed from
  its start for each of them. Of a member's path only the last part is used.
  """
  done = folder / "done"
  if done.exists() and done.read_text() == archive.fingerprint():
    return Folder(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with damage_reported(archive.path), tarfile.open(archive.path) as members:
    for member in members:
      stream = members.extractfile(member) if member.isreg() else None
      if stream is not None and wanted(member.name):
        refuse_bomb(
          archive.path, member.size, packed=archive.path.stat().st_size
        )
        with stream, open(folder / member.name.split("/")[-1], "wb") as file:
          shutil.copyfileobj(stream, file, 1 << 20)
  done.write_text(archive.fingerprint())
  return Folder(folder)


@contextlib.contextmanager
def damage_reported(path: pathlib.Path) -> Iterator[None]:
  """Turns what readers of archives raise into one line."""
  try:
    yield
  except (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
    *(EOFError, NotImplementedError, OSError, ValueError, struct.error),
  ) as error:
    # A place before the start of the file is damage, a full disk is not.
    if getattr(error, "errno", None) not in (None, errno.EINVAL):
      raise
    reason = " ".join(str(error).split())
    raise errors.UserError(
      f"{path} is damaged or cut short ({reason}); fetch it again."
    ) from error


def refuse_bomb(path: pathlib.Path, size: int, *, packed: int) -> None:
  """Raises UserError if `packed` bytes become implausibly many."""
  if size > max(_FREE_BYTES, _MOST_RATIO * packed):
    raise errors.UserError(
      f"{path} unpacks to over {_MOST_RATIO} times its size, which text does"
      " not; unpack it yourself if you trust it, and give the folder."
    )
