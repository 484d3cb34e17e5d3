"""Sources: a folder, a zip, a tar or a single file, read in place.

Members are read as streams and never unpacked by the archive's own paths, so
an archive cannot write anywhere.
"""

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
from collections.abc import Callable, Iterator
from typing import IO, NoReturn

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data_prep import piece

# Compression shrinks real text to about a fifth. An archive that exceeds both
# of these when it is unpacked was made to fill the disk.
_MOST_RATIO = 200
_FREE_BYTES = 1 << 28


class Source:
  """Files by name: those of a folder and of the folders in it, or one file.

  Folders of a name in `skip` are not entered.
  """

  def __init__(self, path: pathlib.Path, *, skip: tuple[str, ...] = ()):
    self.path = path
    self._skip = skip

  @functools.cached_property
  def names(self) -> list[str]:
    """Paths of the regular files within the source, sorted."""
    with damage_reported(self.path):
      return sorted(self._list())

  @contextlib.contextmanager
  def open(self, name: str) -> Iterator[IO[bytes]]:
    """Opens a file; UserError if it turns out to be damaged or hostile."""
    with damage_reported(self.path), self._open(name) as stream:
      yield stream

  def read(self, *names: str) -> piece.Pieces:
    """Yields the text of some files, each a document."""
    separator = "/" if self.path.is_dir() else ":"
    for name in names:
      with self.open(name) as stream:
        yield from piece.cut(stream, origin=f"{self.path}{separator}{name}")

  def member(self, *endings: str, needed: str) -> str:
    """Returns the first file whose path ends so; UserError if there is none."""
    for ending in endings:
      for name in self.names:
        if f"/{name}".endswith(f"/{ending}"):
          return name
    wanted = " or ".join(endings)
    raise errors.UserError(f"{self.path} has no {wanted}; give {needed}.")

  def fingerprint(self) -> str:
    """Returns a string that changes when the source changes."""
    inside = self.names if self.path.is_dir() else []
    return fingerprint([self.path, *(self.path / name for name in inside)])

  def _list(self) -> Iterator[str]:
    if not self.path.is_dir():
      yield self.path.name
      return
    for root, folders, files in os.walk(self.path, onerror=refuse_folder):
      folders[:] = [name for name in folders if name not in self._skip]
      for path in (pathlib.Path(root, name) for name in files):
        if path.is_file():
          yield path.relative_to(self.path).as_posix()

  def _open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    return open(self.path / name if self.path.is_dir() else self.path, "rb")


class Zip(Source):
  """The files in a zip archive."""

  def _list(self) -> Iterator[str]:
    with zipfile.ZipFile(self.path) as archive:
      # `is_dir` fails where a name is empty.
      yield from (n for n in archive.namelist() if not n.endswith("/"))

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

  def _list(self) -> Iterator[str]:
    with tarfile.open(self.path) as archive:
      yield from (member.name for member in archive if member.isreg())

  @contextlib.contextmanager
  def _open(self, name: str) -> Iterator[IO[bytes]]:
    with tarfile.open(self.path) as archive:
      info = archive.getmember(name)
      refuse_bomb(self.path, info.size, packed=self.path.stat().st_size)
      if (stream := archive.extractfile(info)) is None:
        raise tarfile.ReadError(f"{name} is not a regular file")
      with stream:
        yield stream


def fingerprint(paths: list[pathlib.Path]) -> str:
  """Returns a string that changes when one of the files changes."""
  states = []
  for path in paths:
    status = path.stat()
    place = os.path.abspath(path)  # The same from every working folder.
    states.append((place, status.st_size, status.st_mtime_ns))
  return hashlib.sha256(repr(states).encode()).hexdigest()


def locate(path: str | pathlib.Path) -> Source:
  """Returns the source at a path, recognised by its content."""
  place = pathlib.Path(storage.expanded(path))
  if place.is_dir():
    return Source(place)
  if not place.is_file():
    raise errors.UserError(
      f"--source={path} does not exist; give the archive, or a folder of it."
    )
  with open(place, "rb") as file:
    # A zip that was cut short is a zip by its first bytes only.
    if file.read(4) == b"PK\x03\x04":
      return Zip(place)
  is_tar = place.name.endswith((".tar.gz", ".tgz", ".tar"))
  return Tar(place) if is_tar else Source(place)


def unpack(
  archive: Tar, folder: pathlib.Path, *, wanted: Callable[[str], bool]
) -> Source:
  """Returns a folder with the wanted members, copied there in one pass.

  In place, an archive is decompressed from its start for each of them. Of a
  member's path only the last part is used.
  """
  folder.mkdir(parents=True, exist_ok=True)
  packed = archive.path.stat().st_size
  with damage_reported(archive.path), tarfile.open(archive.path) as members:
    for member in members:
      stream = members.extractfile(member) if member.isreg() else None
      if stream is not None and wanted(member.name):
        refuse_bomb(archive.path, member.size, packed=packed)
        with stream, open(folder / member.name.split("/")[-1], "wb") as file:
          shutil.copyfileobj(stream, file, 1 << 20)
  return Source(folder)


def refuse_folder(error: OSError) -> NoReturn:
  """Raises what `os.walk` ignores, for example a missing permission."""
  raise error


@contextlib.contextmanager
def damage_reported(path: pathlib.Path) -> Iterator[None]:
  """Turns exceptions of readers of archives into a UserError."""
  try:
    yield
  except (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    OSError,
    ValueError,
    struct.error,
    # Arrow allocates whatever a damaged file asks for, and misses dictionaries.
    MemoryError,
    KeyError,
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
      " not; unpack or convert it yourself if you trust it, and give the files."
    )
