"""Where a dataset grows until it is whole: `NAME.partial` beside `NAME`.

The folder is renamed when everything is written, so `NAME` is whole or absent.
A killed preparation leaves its partial folder, and the same command goes on
from there; a command with other options or another source starts anew.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from typing import IO
from typing import Any

from transformer_xl import errors


class Staging:
  """The partial folder of one dataset, held by one process at a time."""

  def __init__(self, final: pathlib.Path, *, key: dict[str, Any]):
    """Opens the folder; what another `key` left there is deleted.

    Args:
      final: The folder the dataset will have. UserError if it is in use.
      key: All that the result depends on, as JSON.
    """
    self._final = final
    self._folder = final.with_name(final.name + ".partial")
    refuse_existing(final)
    self._folder.mkdir(parents=True, exist_ok=True)
    self._lock = self._take_lock()
    self._recipe = hash_of(key)
    if self.load("recipe") != self._recipe:
      for path in self._folder.iterdir():
        if path.name != "lock":
          path.unlink()
      self.save("recipe", self._recipe)

  def __enter__(self) -> "Staging":
    return self

  def __exit__(self, *unused: object) -> None:
    self._lock.close()

  def path(self, name: str) -> pathlib.Path:
    """Returns where a file of the dataset is being written."""
    return self._folder / name

  def load(self, name: str) -> Any:
    """Returns what was saved under this name, or None."""
    try:
      return json.loads(self._state(name).read_text("utf-8"))
    except FileNotFoundError:
      return None

  def save(self, name: str, state: Any) -> None:
    """Saves JSON for a later process; it finds the old or the new state."""
    write(self._state(name), json.dumps(state).encode("utf-8"))

  def publish(self, meta: dict[str, Any]) -> None:
    """Writes meta.json and gives the folder its name."""
    for path in [*self._folder.glob("*.state"), self._folder / "lock"]:
      path.unlink()
    meta = meta | {"recipe": self._recipe}
    content = json.dumps(meta, indent=2, ensure_ascii=False) + "\n"
    write(self._folder / "meta.json", content.encode("utf-8"))
    refuse_existing(self._final)
    self._folder.rename(self._final)

  def discard(self) -> None:
    """Deletes the partial folder: nothing in it can be of use."""
    shutil.rmtree(self._folder)

  def _state(self, name: str) -> pathlib.Path:
    return self._folder / f"{name}.state"

  def _take_lock(self) -> IO[str]:
    lock = open(self._folder / "lock", "w")  # noqa: SIM115
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      lock.close()
      raise errors.UserError(
        f"another process is preparing {self._final}; wait for it, or choose"
        " another --name."
      ) from None
    return lock


def read_meta(final: pathlib.Path) -> dict[str, Any]:
  """Returns what `publish` wrote there; empty if there is no dataset."""
  try:
    return json.loads((final / "meta.json").read_text("utf-8"))
  except (FileNotFoundError, NotADirectoryError, ValueError):
    return {}


def hash_of(key: dict[str, Any]) -> str:
  """Returns the recipe that meta.json states of a dataset made by this key."""
  return hashlib.sha256(json.dumps(key).encode("utf-8")).hexdigest()


def refuse_existing(final: pathlib.Path) -> None:
  """Raises UserError if the folder exists and holds anything."""
  if final.exists() and (not final.is_dir() or any(final.iterdir())):
    raise errors.UserError(
      f"{final} holds something else and is left as it is; delete it to"
      " prepare it anew, or choose another --name."
    )


def write(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that the old or the new content is found, never half."""
  temporary = path.with_name(path.name + ".new")
  with open(temporary, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def digest(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file in hexadecimal."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
