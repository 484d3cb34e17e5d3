"""Datasets of the HuggingFace Hub by name, pinned to a commit.

    hf://datasets/OWNER/NAME[@REVISION][/PART]

PART is a configuration in the dataset's README, or a folder, a file or a
pattern. Without one, the default configuration is taken, or all files of a
dataset that has none. Only files of data come, and none of them is run.
"""

import collections
import pathlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import fsspec.utils

from transformer_xl import errors
from transformer_xl.data_prep.text import files as files_lib
from transformer_xl.data_prep.text import splits as splits_lib
from transformer_xl.formats import hub_files

PREFIX = hub_files.DATASETS
_ADDRESS = re.compile(
  re.escape(PREFIX) + r"(?P<name>[^/@]+/[^/@]+)"
  r"(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?"
  r"(/(?P<part>.+))?"
)
_README = "README.md"

# Patterns of files by the split they belong to; None where names tell. As on
# the Hub, `*` stays in a folder, and `**/` is any number of folders.
_Patterns = dict[str | None, list[str]]


class HubDataset(NamedTuple):
  """A downloaded dataset."""

  selection: files_lib.Selection
  address: str  # With the commit: the same files for ever.

  def fingerprint(self) -> str:
    """Returns the address, which is the same wherever the cache is."""
    return self.address


def download(address: str) -> HubDataset:
  """Downloads the files of a dataset, and finds the split of each.

  Raises:
    UserError: there is no such dataset, access to it is refused, there is no
      network, or it has no files that can be read.
  """
  match = _ADDRESS.fullmatch(address)
  if match is None:
    raise errors.UserError(
      f"--source={address} is not a dataset of the Hub; write"
      f" {PREFIX}OWNER/NAME[@REVISION][/CONFIGURATION]."
    )
  name = match["name"]
  card = hub_files.fetch(name, match["revision"], [_README], prefix=PREFIX)
  commit = pathlib.Path(card).name
  patterns = _patterns(address, pathlib.Path(card, _README), match["part"])
  wanted = [one for several in patterns.values() for one in several]
  # Where files are fetched, `*` stands for anything, but `**/` for a folder.
  fetched = wanted + [p.replace("**/", "") for p in wanted if "**/" in p]
  folder = pathlib.Path(hub_files.fetch(name, commit, fetched, prefix=PREFIX))

  found = sorted(path for path in folder.rglob("*") if path.is_file())
  data = [
    splits_lib.TextFile(path, path.relative_to(folder))
    for path in found
    if path.name.lower().endswith(splits_lib.DATA_SUFFIXES)
  ]
  skipped: collections.Counter[str] = collections.Counter()
  splits: dict[str, list[pathlib.Path]] = {}
  for split, several in patterns.items():
    matching = [file for file in data if _matches(file, several)]
    if split is None:
      splits = splits_lib.by_name(address, matching, skipped)
    else:
      splits[split] = [file.path for file in matching]
  splits = _held_out(address, splits)
  splits = {s: splits[s] for s in splits_lib.SPLITS if splits.get(s)}
  if not splits:
    raise errors.UserError(
      f"{address} has no files of text in {', '.join(wanted)}; text is in"
      f" {', '.join(splits_lib.DATA_SUFFIXES)}. For a dataset that a program"
      f" makes try {PREFIX}{name}@refs/convert/parquet."
    )
  if not _names_files(match["part"] or ""):
    chosen = [path for paths in splits.values() for path in paths]
    splits_lib.require_all_parts(address, chosen)
  lines = [f"{sum(map(len, splits.values()))} files of {PREFIX}{name}@{commit}"]
  for split, paths in splits.items():
    lines.append(f"{split}: {splits_lib.listed(path.name for path in paths)}")
  part = f"/{match['part']}" if match["part"] else ""
  return HubDataset(
    files_lib.Selection(splits, "; ".join(lines)),
    f"{PREFIX}{name}@{commit}{part}",
  )


def _held_out(
  address: str, splits: dict[str, list[pathlib.Path]]
) -> dict[str, list[pathlib.Path]]:
  """The splits, with files of validation and test left out of training.

  The patterns of a card may overlap, as in `train: data/*`.
  """
  valid = set(splits.get("valid", ()))
  test = set(splits.get("test", ()))
  if valid & test:
    both = splits_lib.listed(path.name for path in sorted(valid & test))
    raise errors.UserError(
      f"{address} has {both} both for validation and for the test; name other "
      "files."
    )
  if "train" not in splits:
    return splits
  train = [path for path in splits["train"] if path not in valid | test]
  return splits | {"train": train}


def _patterns(
  address: str, readme: pathlib.Path, part: str | None
) -> _Patterns:
  """Returns the patterns of the files to take."""
  configurations = {
    str(entry["config_name"]): entry for entry in _configurations(readme)
  }
  if part is None and configurations:
    part = _default(address, configurations)
  if part in configurations:
    entry = configurations[part]
    if "data_files" in entry:
      return _of_data_files(address, entry["data_files"])
    part = entry.get("data_dir")
  if part is None:
    return {None: [f"**/*{suffix}" for suffix in splits_lib.DATA_SUFFIXES]}
  if _names_files(part):
    return {None: [part]}
  folder = part.rstrip("/")
  return {None: [f"{folder}/**/*{s}" for s in splits_lib.DATA_SUFFIXES]}


def _names_files(part: str) -> bool:
  """Whether a part is a file or a pattern, and no folder or configuration."""
  is_pattern = any(mark in part for mark in "*?[")
  return is_pattern or part.endswith(splits_lib.DATA_SUFFIXES)


def _configurations(readme: pathlib.Path) -> list[dict[str, Any]]:
  """Returns what the README says of configurations, which may be nothing."""
  if not readme.exists():
    return []
  from huggingface_hub import repocard  # Only this needs its library.

  try:
    metadata = repocard.metadata_load(readme) or {}
    return [dict(c) for c in metadata.get("configs", []) if "config_name" in c]
  except Exception as error:  # YAML's own errors have no common base.
    reason = " ".join(str(error).split())[:200]
    raise errors.UserError(
      f"{readme} has damaged metadata ({reason}); name files instead, such as"
      f" {PREFIX}OWNER/NAME/data/*.parquet, of another revision."
    ) from None


def _default(address: str, configurations: dict[str, dict[str, Any]]) -> str:
  """Returns the name of the default configuration, as the Hub chooses it."""
  names = [*configurations]
  chosen = [n for n in names if configurations[n].get("default")]
  chosen += [n for n in names if n == "default"]
  if len(names) == 1:
    chosen = names
  if not chosen:
    raise errors.UserError(
      f"{address} has the configurations {', '.join(names)[:200]}; name one,"
      f" as in --source={address}/{names[0]}."
    )
  return chosen[0]


def _of_data_files(address: str, data_files: Any) -> _Patterns:
  """Returns the patterns of a configuration's `data_files`.

  It is a pattern, a list of patterns, or a list of entries with the split and
  its patterns.
  """
  entries = data_files if isinstance(data_files, list) else [data_files]
  patterns: dict[str | None, list[str]] = {}
  names = []
  for entry in entries:
    if not isinstance(entry, dict):
      entry = {"split": "train", "path": entry}
    names.append(str(entry.get("split")))
    split = splits_lib.split_named(names[-1])
    if split is not None:
      if "path" not in entry:
        raise errors.UserError(
          f"{address} names no files for its split {names[-1]}; name them, such"
          f" as {PREFIX}OWNER/NAME/data/{names[-1]}-*."
        )
      path = entry["path"]
      several = [path] if isinstance(path, str) else [*path]
      patterns.setdefault(split, []).extend(several)
  if not patterns:
    raise errors.UserError(
      f"{address} has the splits {', '.join(names)}, and none is called train,"
      " validation or test; name its files, such as"
      f" {PREFIX}OWNER/NAME/data/{names[0]}-*."
    )
  return patterns


def _matches(file: splits_lib.TextFile, patterns: Iterable[str]) -> bool:
  """Whether one of the patterns is that of a file."""
  inside = file.inside.as_posix()
  return any(
    re.match(fsspec.utils.glob_translate(pattern), inside)
    for pattern in patterns
  )
