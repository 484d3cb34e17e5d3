"""Published archives: their addresses, downloads and verification.

Downloads are by `requests`, which tensorflow-datasets needs as well. Its own
download manager neither continues a download that broke off nor times out.
"""

import dataclasses
import itertools
import os
import pathlib
import sys

import filelock
import requests

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import token_file
from transformer_xl.data_prep import piece
from transformer_xl.data_prep import source

_BLOCK = 1 << 20
_HEADERS = {
  # Some mirrors refuse the name of the library.
  "User-Agent": "Mozilla/5.0 (compatible; transformer-xl)",
  # Sizes and hashes are of the file as it is stored.
  "Accept-Encoding": "identity",
}
_TIMEOUT = 30  # Seconds.
# The second try continues where the first broke off.
_TRIES = 2


@dataclasses.dataclass(frozen=True)
class Archive:
  """A file as its publisher offers it."""

  filename: str
  urls: tuple[str, ...]  # The original address, then mirrors of the same file.
  size: int | None = None  # None where the published value is not known; then
  sha256: str | None = None  # the text is checked by its counts alone.


def published(dataset: str) -> tuple[Archive, ...]:
  """Returns the archives in a dataset's checksums.tsv, in the order there."""
  path = pathlib.Path(__file__).with_name(dataset) / "checksums.tsv"
  rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
  mirrors = itertools.groupby(rows, lambda row: row[1:])
  return tuple(
    Archive(name, tuple(url for url, *_ in same), int(size), sha256)
    for (size, sha256, name), same in mirrors
  )


def locate(
  archives: tuple[Archive, ...], *, path: str | None, cache: pathlib.Path
) -> source.Source:
  """Returns the verified archive, or the folder of its files, or downloads it.

  There is one archive, or files that mirrors offer instead of it.
  """
  if path is None:
    fetched = [fetch(archive, cache) for archive in archives]
    return source.locate(cache if len(fetched) > 1 else fetched[0])
  place = pathlib.Path(storage.expanded(path))
  for archive in archives:
    # The files of several are checked by their counts: other sources have the
    # same text.
    inside = place / archive.filename
    if len(archives) == 1 and inside.is_file():
      place = inside
    if place.name == archive.filename and place.is_file():
      verify(place, archive)
  return source.locate(place)


def verify(path: pathlib.Path, archive: Archive) -> None:
  """Raises UserError unless the file has the published size and hash."""
  problem = None
  size = path.stat().st_size
  if archive.size not in (None, size):
    problem = f"it has {size} bytes, not {archive.size}"
  elif archive.sha256 not in (None, found := token_file.sha256(path)):
    problem = f"its SHA-256 is {found}, not {archive.sha256}"
  if problem:
    raise errors.UserError(
      f"{path} is not the published file: {problem}; fetch it again."
    )


def fetch(archive: Archive, cache: pathlib.Path) -> pathlib.Path:
  """Returns the path of the archive, downloaded unless the cache has it.

  What a broken download leaves is continued, by this call or a later one. If no
  address gives the published file, a UserError says why.
  """
  path = cache / archive.filename
  if path.exists():
    verify(path, archive)
    return path
  cache.mkdir(parents=True, exist_ok=True)
  lock = filelock.FileLock(f"{path}.lock")
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    label = f"waiting for another process that downloads {archive.filename}"
    print(label, file=sys.stderr)
    lock.acquire()
  try:
    if not path.exists():
      _fetch(archive, path)
      return path
  finally:
    os.unlink(lock.lock_file)
    lock.release()
  verify(path, archive)
  return path


def _fetch(archive: Archive, path: pathlib.Path) -> None:
  """Downloads and verifies an archive; UserError if no address gives it."""
  partial = path.with_name(path.name + ".partial")
  reasons = {}
  for url in archive.urls * _TRIES:
    try:
      _download(url, partial)
      verify(partial, archive)
      partial.rename(path)
      return
    except errors.UserError as error:
      partial.unlink()
      reasons[url] = str(error)
    except requests.exceptions.InvalidSchema:
      reasons[url] = "it leads to an address that is not https"
    except requests.RequestException as error:
      reasons[url] = str(error)
  listed = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
  raise errors.UserError(
    f"{archive.filename} could not be downloaded ({listed}); fetch it on"
    " another machine and give it with --source=PATH."
  )


def _download(url: str, path: pathlib.Path) -> None:
  """Downloads a file, or the rest of a partial one."""
  if not url.startswith("https://"):
    raise ValueError(f"downloads are by https only, not {url}")
  start = path.stat().st_size if path.exists() else 0
  headers = _HEADERS | ({"Range": f"bytes={start}-"} if start else {})
  with (
    _session() as session,
    session.get(
      url, headers=headers, stream=True, timeout=_TIMEOUT
    ) as response,
  ):
    if response.status_code == requests.codes.requested_range_not_satisfiable:
      return  # Nothing is missing.
    response.raise_for_status()
    if response.status_code != requests.codes.partial_content:
      start = 0
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    label = f"downloading {url}"
    with (
      open(path, "ab" if start else "wb") as file,
      piece.progress_bar(label, initial=start, total=total) as bar,
    ):
      for block in response.iter_content(_BLOCK):
        file.write(block)
        bar.update(len(block))


def _session() -> requests.Session:
  """Returns a session that follows no redirection to an open connection."""
  session = requests.Session()
  session.adapters.clear()
  session.mount("https://", requests.adapters.HTTPAdapter())
  return session
