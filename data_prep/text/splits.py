"""Which split each file of text belongs to."""

import collections
import pathlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from transformer_xl import errors

# Formats that datasets come in; only these can be named for splits beside
# other files of text, such as a README.md.
DATA_SUFFIXES = (
  ".txt",
  ".txt.gz",
  ".jsonl",
  ".jsonl.gz",
  ".csv",
  ".csv.gz",
  ".parquet",
  ".arrow",
)
_TABLES = (".parquet", ".arrow")
# Files that lie beside a dataset and are not text of it, whatever their suffix.
_BESIDE_DATA = re.compile(r"(readme|license|licence|copying|notice)\b", re.I)
SPLITS = {
  "train": ("train", "training"),
  "valid": ("valid", "validation", "dev", "val"),
  "test": ("test",),
}
_SHARD = re.compile(r"[-.]\d{5}-of-\d{5}.*")
_PART = re.compile(r"(?P<name>.+[-.])(?P<number>\d{5})-of-(?P<count>\d{5}).*")
# The report names this many files of each split, and counts the others.
_MOST_NAMES = 3


class TextFile(NamedTuple):
  """A file of text, and its path below what the user gave.

  Of several files, folders or patterns that is the path below all of them.
  """

  path: pathlib.Path
  inside: pathlib.PurePath

  @property
  def is_data(self) -> bool:
    """Whether the file has a format that datasets come in."""
    return self.path.name.lower().endswith(DATA_SUFFIXES)


def split_named(name: str) -> str | None:
  """Returns train, valid or test for any usual name of one, or None."""
  return next((s for s in SPLITS if name.lower() in SPLITS[s]), None)


def by_name(
  source: str, files: list[TextFile], skipped: collections.Counter[str]
) -> dict[str, list[pathlib.Path]]:
  """Returns the files of the splits that they are named for.

  All are training text if none is named for validation or test, and so is a
  single file. UserError if only some of them are named for splits: what the
  others are is then unknown.
  """
  if len(files) == 1:
    return {"train": [file.path for file in files]}
  texts = [file for file in files if not _BESIDE_DATA.match(file.path.name)]
  split_of = {file: _exact_split(file) for file in texts}
  if not all(split_of.values()):
    # Prose and source files are a card or a script if data lies beside them.
    split_of = _splits_of_data(texts)
  unnamed = [file for file, split in split_of.items() if split is None]
  named_splits = {*split_of.values()} - {None}
  if not named_splits or (unnamed and named_splits == {"train"}):
    return {"train": [file.path for file in files]}

  if "train" not in named_splits:
    # Then prose and source files may well be the text to train on.
    unnamed += [file for file in texts if file not in split_of]
  if unnamed:
    held_out = [f.path.name for f, split in split_of.items() if split]
    raise errors.UserError(
      f"--source={source} has files that are named for splits"
      f" ({listed(held_out)}) and files that are not"
      f" ({listed(file.path.name for file in unnamed)}): name them"
      " train.*, valid.* and test.*, move away what is none of these, or give"
      " --source, --valid_source and --test_source."
    )

  splits: dict[str, list[pathlib.Path]] = {}
  for split in SPLITS:
    paths = [file.path for file in files if split_of.get(file) == split]
    if paths:
      splits[split] = paths
  num_skipped = len(files) - sum(map(len, splits.values()))
  if num_skipped:
    skipped["not named for a split"] += num_skipped
  return splits


def without_held_out(
  found: dict[str, dict[str, TextFile]],
) -> dict[str, list[pathlib.Path]]:
  """Returns the files of each split; held-out files are not training text.

  UserError if validation text is also test text, or if training text is named
  for one of them.
  """
  valid = found.get("valid", {})
  test = found.get("test", {})
  both = [valid[path].path for path in valid if path in test]
  if both:
    raise errors.UserError(
      f"--valid_source and --test_source both have {listed(map(str, both))};"
      " name other files in one of them, or leave one of them out."
    )
  train = [
    file
    for path, file in found["train"].items()
    if path not in valid and path not in test
  ]
  if not train:
    raise errors.UserError(
      "all files of --source are validation or test text, too; name other "
      "files of training text."
    )
  for file, split in _splits_of_data(train).items():
    if split in ("valid", "test"):
      raise errors.UserError(
        f"{file.path} is named for the {split} split, but is training text of"
        f" --source; name it in --{split}_source, leave it out, or rename it."
      )
  splits = {"train": [file.path for file in train]}
  for split in ("valid", "test"):
    if split in found:
      splits[split] = [file.path for file in found[split].values()]
  return splits


def _splits_of_data(files: list[TextFile]) -> dict[TextFile, str | None]:
  """Returns the splits in the names of the files of data, None where none is.

  A name such as books_test.txt or test/a.txt counts if there is also one for
  the training text; otherwise it may be the title of a book.
  """
  data = [file for file in files if file.is_data]
  exact = {file: _exact_split(file) for file in data}
  folders = {file: _split_of_folder(file) for file in data}
  # Folders of which one has the training text count before titles.
  by_folder = "train" in folders.values()
  likely = {}
  for file in data:
    title = _split_of_title(file)
    folder = folders[file]
    likely[file] = exact[file] or (
      (folder or title) if by_folder else (title or folder)
    )
  return likely if "train" in likely.values() else exact


def _exact_split(file: TextFile) -> str | None:
  """Returns the split that a file is named for, as train.txt is."""
  stem = _SHARD.sub("", file.path.name.split(".")[0])
  names = [stem]
  if file.path.name.lower().endswith(_TABLES):
    # HuggingFace has default/train/0000.parquet and wikitext-train.arrow, too.
    names += [*reversed(re.split(r"[-_]", stem)), file.inside.parent.name]
  return _first_split(names)


def _split_of_title(file: TextFile) -> str | None:
  """Returns the split in a longer name.

  Such are books_train.txt, wiki.valid.txt, test_2.txt and train1.txt.
  """
  name = file.path.name.lower()
  for suffix in DATA_SUFFIXES:
    name = name.removesuffix(suffix)
  words = re.split(r"[-_.]+", _SHARD.sub("", name))
  # Without numbers: test2, and the last word of train_2.
  words = [word.rstrip("0123456789") for word in words]
  words = [word for word in words if word]
  return _first_split([*words[:1], *words[-1:]])


def _split_of_folder(file: TextFile) -> str | None:
  """Returns the split that a folder is named for, as in train/a.txt."""
  return _first_split(file.inside.parts[:-1])


def _first_split(names: Iterable[str]) -> str | None:
  return next(filter(None, map(split_named, names)), None)


def listed(names: Iterable[str]) -> str:
  """Returns some names, and how many there are beyond."""
  names = [*names]
  text = ", ".join(names[:_MOST_NAMES])
  num_others = len(names) - _MOST_NAMES
  return f"{text} and {num_others} more" if num_others > 0 else text


def require_all_parts(source: str, paths: Iterable[pathlib.Path]) -> None:
  """Refuses numbered files such as train-00001-of-00003.txt of which some lack.

  They are parts of one text, which a broken copy or an old cache may have lost.
  Numbers begin with 0 or 1.

  Raises:
    UserError: a part is missing.
  """
  numbers: dict[tuple[pathlib.Path, str, int], set[int]] = {}
  for path in paths:
    match = _PART.fullmatch(path.name)
    if match:
      text = (path.parent, match["name"], int(match["count"]))
      numbers.setdefault(text, set()).add(int(match["number"]))
  for (folder, name, count), found in numbers.items():
    first = 1 if count in found else 0
    missing = sorted({*range(first, first + count)} - found)
    if missing:
      lacking = listed(f"{name}{one:05d}-of-{count:05d}" for one in missing)
      raise errors.UserError(
        f"--source={source} has parts of one text, and lacks {lacking} in"
        f" {folder}; copy or download them, or name the files to read in a"
        f" pattern, such as '{name}*'."
      )
