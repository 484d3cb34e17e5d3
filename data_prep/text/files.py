"""Which files are read as text."""

import collections
import glob
import json
import os
import pathlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep.text import splits as splits_lib

_PROSE = (".md", ".rst", ".adoc", ".org", ".tex")
_CODE = (
  ".c",
  ".h",
  ".cc",
  ".cpp",
  ".hpp",
  ".cs",
  ".go",
  ".java",
  ".jl",
  ".js",
  ".kt",
  ".lua",
  ".php",
  ".pl",
  ".py",
  ".r",
  ".rb",
  ".rs",
  ".scala",
  ".sh",
  ".sql",
  ".swift",
  ".ts",
)
SUFFIXES = splits_lib.DATA_SUFFIXES + _PROSE + _CODE
# Folders of programs; those whose names begin with a dot are skipped as well.
_SKIPPED_FOLDERS = ("__MACOSX", "__pycache__", "node_modules")


class Selection(NamedTuple):
  """The files of each split in the order of reading, and a report on them."""

  splits: dict[str, list[pathlib.Path]]
  report: str


def select(
  *, source: str, valid_source: str | None, test_source: str | None
) -> Selection:
  """Finds the files of each split.

  Each argument is a file, a folder, or patterns separated by commas. If neither
  validation nor test text is given, the names of the files in `source` decide.

  Raises:
    UserError: there is no text, a file or a folder cannot be found, or text
      that is named for validation or test would be training text.
  """
  skipped: collections.Counter[str] = collections.Counter()
  found = {"train": _find("source", source, skipped)}
  if valid_source is not None:
    found["valid"] = _find("valid_source", valid_source, skipped)
  if test_source is not None:
    found["test"] = _find("test_source", test_source, skipped)

  if len(found) == 1:
    splits = splits_lib.by_name(source, [*found["train"].values()], skipped)
  else:
    splits = splits_lib.without_held_out(found)

  num_read = sum(map(len, splits.values()))
  files = "file" if num_read == 1 else "files"
  reasons = f" ({_counted(skipped)})" if skipped else ""
  empty = [p.name for ps in splits.values() for p in ps if not p.stat().st_size]
  read = f"{num_read} {files} read"
  if empty:
    read += f" ({len(empty)} empty: {splits_lib.listed(empty)})"
  lines = [f"{read}, {skipped.total()} skipped{reasons}"]
  for split, paths in splits.items():
    lines.append(f"{split}: {splits_lib.listed(path.name for path in paths)}")
  return Selection(splits, "; ".join(lines))


def _find(
  flag: str, where: str, skipped: collections.Counter[str]
) -> dict[str, splits_lib.TextFile]:
  """Returns the files that a flag stands for, each once, by their real paths.

  They are sorted in each folder and pattern. `skipped` counts all others.
  """
  found: dict[str, splits_lib.TextFile] = {}
  patterns = where.split(",")
  if os.path.exists(storage.expanded(where)):
    patterns = [where]  # One name, in which there may be commas.
  below = _common_folder(patterns)
  for pattern in patterns:
    if not pattern.strip():
      raise errors.UserError(
        f"--{flag}={where} has an empty part between its commas; give FILE,"
        " FOLDER or patterns, without a comma at the end."
      )
    place = pathlib.Path(storage.expanded(pattern))
    if place.is_dir():
      paths = _in_folder(place, skipped)
      splits_lib.require_all_parts(where, paths)
    else:
      paths = _matches(flag, place)
    for path in paths:
      file = splits_lib.TextFile(
        path, pathlib.PurePath(os.path.relpath(path, below))
      )
      real_path = os.path.realpath(path)
      if real_path in found:
        skipped["named twice"] += 1
      else:
        found[real_path] = file
  if not found:
    others = f", but {_counted(skipped)}" if skipped else ""
    suffixes = ", ".join(splits_lib.DATA_SUFFIXES + _PROSE)
    raise errors.UserError(
      f"--{flag}={where} has no files of text{others}; text is in {suffixes}"
      " and source files. A pattern such as 'books/*.log' reads any other file"
      " as text."
    )
  _refuse_packed_copies(f"--{flag}={where}", found)
  return found


def _refuse_packed_copies(source: str, found: Collection[str]) -> None:
  """Refuses a file beside itself in gzip, as `gzip --keep` leaves them.

  Its text would count twice, and held-out text could be training text.
  """
  for packed in sorted(found):
    unpacked = packed.removesuffix(".gz")
    if unpacked != packed and unpacked in found:
      raise errors.UserError(
        f"{source} has {unpacked} and the same in gzip, {packed}; move one of"
        " them away."
      )


def _common_folder(patterns: Sequence[str]) -> str:
  """Returns the folder that everything which patterns stand for is in."""
  folders = []
  for pattern in patterns:
    place = os.path.abspath(storage.expanded(pattern))
    folders.append(place if os.path.isdir(place) else _literal_folder(place))
  return os.path.commonpath(folders)


def _literal_folder(place: str) -> str:
  """Returns the folder of a path, or in front of the wildcards of a pattern."""
  if os.path.exists(place):
    return os.path.dirname(place)
  return os.path.dirname(re.split(r"[*?\[]", place)[0])


def _in_folder(
  folder: pathlib.Path, skipped: collections.Counter[str]
) -> list[pathlib.Path]:
  """Returns the files of text below a folder, sorted, and counts all others.

  Links to folders are followed, and each folder is read once. What this package
  has prepared is no text.
  """
  found: list[pathlib.Path] = []
  visited: set[str] = set()
  tree = os.walk(folder, onerror=source_lib.refuse_folder, followlinks=True)
  for root, folders, names in tree:
    real_path = os.path.realpath(root)
    if real_path in visited:
      folders.clear()
      continue
    visited.add(real_path)
    if _is_prepared(root, names):
      folders.clear()
      skipped["prepared before"] += 1
      continue

    folders.sort()  # Which name a folder has that a link leads to as well.
    for name in [*folders]:
      if name.startswith(".") or name in _SKIPPED_FOLDERS:
        folders.remove(name)
        skipped[f"{name}/"] += 1

    for name in names:
      path = pathlib.Path(root, name)
      if name.startswith("."):
        skipped["hidden"] += 1
      elif not name.lower().endswith(SUFFIXES) or _is_cache(path):
        skipped[path.suffix or "no suffix"] += 1
      elif path.is_file():
        found.append(path)
      elif path.is_symlink():
        raise errors.UserError(
          f"{path} is a link to {os.readlink(path)}, which does not exist;"
          " restore that file, or delete the link."
        )
      else:
        skipped["not a file"] += 1
  return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _is_prepared(folder: str, names: Sequence[str]) -> bool:
  """Whether a folder has a vocabulary of ours, with a dataset or a run."""
  if "meta.json" not in names:
    return False
  try:
    meta = json.loads(pathlib.Path(folder, "meta.json").read_text("utf-8"))
    return {"unit", "vocabulary", "tokenizer"} <= {*meta}
  except (OSError, ValueError, TypeError, RecursionError):
    return False


def _matches(flag: str, place: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that a path or a pattern stands for, sorted."""
  if place.exists():
    if not place.is_file():
      raise errors.UserError(
        f"--{flag}={place} is neither a file nor a folder, and text is read"
        " more than once; write it to a file."
      )
    return [place]
  start = _literal_folder(str(place)) or "."
  if "**" in str(place) and os.path.isdir(start):
    # `glob` leaves folders out that it cannot read.
    for _, folders, _ in os.walk(start, onerror=source_lib.refuse_folder):
      folders[:] = [name for name in folders if not name.startswith(".")]
  matches = map(pathlib.Path, glob.glob(str(place), recursive=True))
  paths = sorted(match for match in matches if match.is_file())
  if not paths:
    # Only an opening bracket means anything else than itself.
    literal = str(place).replace("[", "[[]")
    hint = ""
    if "[" in str(place):
      hint = " Brackets are a pattern for one of the characters in them;"
      if glob.glob(literal, recursive=True):
        hint += f" for brackets in a name, write --{flag}='{literal}'."
      else:
        hint += " write [[] for a bracket in a name."
    raise errors.UserError(
      f"--{flag}={place} does not exist; give FILE, FOLDER or '*.txt'.{hint}"
    )
  return paths


def _is_cache(path: pathlib.Path) -> bool:
  """Whether HuggingFace's datasets does not count an .arrow file as data.

  A folder of `save_to_disk` can have the results of `map` beside its data.
  """
  state = path.with_name("state.json")
  if path.suffix != ".arrow" or not state.is_file():
    return False
  try:
    entries = json.loads(state.read_text("utf-8"))["_data_files"]
    return path.name not in [entry["filename"] for entry in entries]
  except (ValueError, LookupError, TypeError):
    raise errors.UserError(
      f"{state} is damaged; save the dataset again with save_to_disk."
    ) from None


def _counted(skipped: collections.Counter[str]) -> str:
  return ", ".join(f"{reason}: {n}" for reason, n in skipped.most_common())
