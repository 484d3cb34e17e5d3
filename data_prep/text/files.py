"""Which files are read as text, and which split each belongs to."""

import collections
import glob
import itertools
import json
import pathlib
import re

from data_prep import source
from transformer_xl import errors

# Formats that datasets come in; only these can be named for splits beside
# other files of text, such as a README.md.
DATA_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".parquet", ".arrow")
_TABLES = (".parquet", ".arrow")
_PROSE = (".md", ".rst", ".adoc", ".org", ".tex")
_CODE = (
  *(".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".java", ".jl", ".js"),
  *(".kt", ".lua", ".php", ".pl", ".py", ".r", ".rb", ".rs", ".scala", ".sh"),
  *(".sql", ".swift", ".ts"),
)
SUFFIXES = DATA_SUFFIXES + _PROSE + _CODE
_SKIPPED_FOLDERS = (
  *(".cache", ".git", ".hg", ".venv", "__pycache__", "node_modules"),
)
SPLITS = {
  "train": ("train", "training"),
  "valid": ("valid", "validation", "dev", "val"),
  "test": ("test",),
}
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*")


def of_splits(
  **sources_of_flags: str | None,
) -> tuple[dict[str, list[pathlib.Path]], str]:
  """Returns the files of each split, and how many were read and skipped.

  The flags `source`, `valid_source` and `test_source`, in this order, are a
  file, a folder, patterns separated by commas, or None. Files named for splits
  belong to these, unless validation or test text is given; what is given there
  is no training text. UserError if one of them does not exist or has no files
  of text.
  """
  skipped: collections.Counter[str] = collections.Counter()
  flags = zip(SPLITS, sources_of_flags.items(), strict=True)
  found = {
    split: _expand(flag, where, skipped)
    for split, (flag, where) in flags
    if where is not None
  }
  if len(found) == 1:
    every = found["train"]
    data = [path for path in every if path.name.lower().endswith(DATA_SUFFIXES)]
    for group in (every, data):
      named = [(path, _split_of(path)) for path in group]
      if named and all(split for _, split in named):
        others = set(every) - set(group)
        skipped.update(path.suffix or "no suffix" for path in others)
        found = {s: [p for p, split in named if split == s] for s in SPLITS}
        found = {split: paths for split, paths in found.items() if paths}
        break
  else:
    given = itertools.chain(found.get("valid", ()), found.get("test", ()))
    held_out = {path.resolve() for path in given}
    found["train"] = [
      path for path in found["train"] if path.resolve() not in held_out
    ]
    if not found["train"]:
      raise errors.UserError(
        "all files of --source are validation or test text, too; name other "
        "files of training text."
      )
  num_read = sum(map(len, found.values()))
  listed = f" ({_listed(skipped)})" if skipped else ""
  files = "file" if num_read == 1 else "files"
  return found, f"{num_read} {files} read, {skipped.total()} skipped{listed}"


def split_named(name: str) -> str | None:
  """Returns train, valid or test for any usual name of one, or None."""
  return next((s for s in SPLITS if name.lower() in SPLITS[s]), None)


def _split_of(path: pathlib.Path) -> str | None:
  """Returns the split in a file's name; a table can be in a folder of one."""
  stem = path.name.split(".")[0]
  names = [_SHARD.sub("", stem)]
  if path.name.lower().endswith(_TABLES):
    # HuggingFace has default/train/0000.parquet and wikitext-train.arrow, too.
    names += [*reversed(re.split(r"[-_]", stem)), path.parent.name]
  return next(filter(None, map(split_named, names)), None)


def _expand(
  flag: str, where: str, skipped: collections.Counter[str]
) -> list[pathlib.Path]:
  """Returns the files that a path or patterns stand for, sorted in each."""
  found: list[pathlib.Path] = []
  for pattern in where.split(","):
    place = pathlib.Path(pattern).expanduser()
    if place.is_dir():
      found += _in_folder(place, skipped)
      continue
    matches = map(pathlib.Path, glob.glob(str(place), recursive=True))
    paths = sorted(match for match in matches if match.is_file())
    paths = [place] if place.exists() else paths
    if not paths:
      raise errors.UserError(
        f"--{flag}={pattern} does not exist; give FILE, FOLDER or '*.txt'."
      )
    found += paths
  if not found:
    others = f", but {_listed(skipped)}" if skipped else ""
    raise errors.UserError(
      f"--{flag}={where} has no files of text{others}; text is in"
      f" {', '.join(DATA_SUFFIXES + _PROSE)} and source files. A pattern such"
      " as 'books/*.log' reads any other file as text."
    )
  return found


def _in_folder(
  folder: pathlib.Path, skipped: collections.Counter[str]
) -> list[pathlib.Path]:
  """Returns the files of text below a folder, and counts all others."""
  names = source.Source(folder, skip=_SKIPPED_FOLDERS).names
  found = []
  for path in (folder / name for name in names):
    if path.name.lower().endswith(SUFFIXES) and not _is_cache(path):
      found.append(path)
    else:
      skipped[path.suffix or "no suffix"] += 1
  return found


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


def _listed(skipped: collections.Counter[str]) -> str:
  return ", ".join(f"{suffix}: {n}" for suffix, n in skipped.most_common())
