"""Published archives: where they are, and whether a file is one of them."""

import dataclasses
import pathlib
import urllib.request
from collections.abc import Sequence

from data_prep import progress
from data_prep import source
from data_prep import staging
from transformer_xl import errors

_BLOCK = 1 << 20
# Some mirrors refuse Python's own name.
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; transformer-xl)"}
_TIMEOUT_SECONDS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archive:
  """A file as its publisher offers it."""

  filename: str
  urls: tuple[str, ...]  # The original address, then mirrors of the same file.
  size: int | None = None  # None where the published value is not known; then
  sha256: str | None = None  # the text is checked by its counts alone.


def locate(
  archive: Archive, *, path: str | None, cache: pathlib.Path
) -> source.Source:
  """Returns the verified archive, or the folder of its files.

  Args:
    archive: What is wanted.
    path: Where the user has it, or None to download it.
    cache: Where downloads are kept.
  """
  if path is None:
    return source.locate(str(fetch(archive, cache)))
  found = source.locate(path)
  inside = found.path / archive.filename
  if inside.is_file():
    found = source.locate(str(inside))
  if found.path.name == archive.filename and found.path.is_file():
    verify(found.path, archive)
  return found


def locate_all(
  archives: Sequence[Archive], *, path: str | None, cache: pathlib.Path
) -> source.Source:
  """As `locate`, for a corpus that mirrors offer file by file."""
  if path is not None:
    return source.locate(path)
  for archive in archives:
    fetch(archive, cache)
  return source.Folder(cache)


def verify(path: pathlib.Path, archive: Archive) -> None:
  """Raises UserError unless the file has the published size and hash."""
  size = path.stat().st_size
  if archive.size is not None and size != archive.size:
    raise errors.UserError(
      f"{path} is not the published {archive.filename}: it has {size} bytes,"
      f" not {archive.size}; fetch it again."
    )
  if archive.sha256 is None:
    return
  if (found := staging.digest(path)) != archive.sha256:
    raise errors.UserError(
      f"{path} is not the published {archive.filename}: its SHA-256 is"
      f" {found}, not {archive.sha256}; fetch it again."
    )


def fetch(archive: Archive, cache: pathlib.Path) -> pathlib.Path:
  """Downloads the archive unless the cache has it; returns its path."""
  path = cache / archive.filename
  if path.exists():
    verify(path, archive)
    return path
  cache.mkdir(parents=True, exist_ok=True)
  reasons = []
  for url in archive.urls:
    partial = path.with_name(path.name + ".partial")
    try:
      _download(url, partial)
      verify(partial, archive)
    except (OSError, errors.UserError) as error:
      partial.unlink(missing_ok=True)
      reasons.append(f"{url}: {error}")
      continue
    partial.rename(path)
    return path
  raise errors.UserError(
    f"{archive.filename} could not be downloaded ({'; '.join(reasons)}); fetch"
    " it on another machine and give it with --source=PATH."
  )


def _download(url: str, path: pathlib.Path) -> None:
  if not url.startswith("https://"):
    raise ValueError(f"downloads are by https only, not {url}")
  request = urllib.request.Request(url, headers=_HEADERS)
  meter = progress.Progress(f"downloading {url}")
  with (
    urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response,
    open(path, "wb") as file,
  ):
    if not response.url.startswith("https://"):
      raise OSError(f"leads to {response.url}, which is not https")
    while block := response.read(_BLOCK):
      file.write(block)
      meter.add(len(block))
  meter.close()
