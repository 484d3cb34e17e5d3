"""The sources of the running Python's standard library, found everywhere.

Real text with long-range structure and no download. The split of a file depends
only on its name, so it is the same in every version of Python.
"""

import functools
import hashlib
import pathlib
import platform
import sysconfig

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

# Tests, tables and generated text, third-party packages, and files that differ
# between builds of the same Python.
_LEFT_OUT = (
  "__phello__",
  "__pycache__",
  "dist-packages",
  "encodings",
  "ensurepip",
  "idle_test",
  "lib-dynload",
  "lib2to3",
  "pydoc_data",
  "site-packages",
  "test",
  "tests",
)
_MACHINE_FILES = ("config-", "_sysconfigdata", "sitecustomize")


@registry.datasets.register("python_stdlib")
class Builder(builder.CorpusBuilder):
  """Builds the sources of the standard library, one record per file."""

  HOMEPAGE = "https://docs.python.org/3/library/"

  @staticmethod
  def open_corpus(
    *, path: str | None, cache: pathlib.Path | None = None
  ) -> corpus.Corpus:
    """Returns the corpus, from this Python's library or the one at `path`."""
    del cache  # Nothing is downloaded.
    place = pathlib.Path(storage.expanded(path or sysconfig.get_path("stdlib")))
    source = source_lib.Source(place, skip=_LEFT_OUT)
    names: dict[str, list[str]] = {split: [] for split in corpus.SPLITS}
    for name in source.names:
      if name.endswith(".py") and not name.startswith(_MACHINE_FILES):
        names[split_of(name)].append(name)
    if not any(names.values()):
      raise errors.UserError(
        f"{place} has no Python sources; give a folder with them, or prepare"
        " your own text with --dataset=text."
      )
    return corpus.Corpus(
      name="python_stdlib",
      splits={s: functools.partial(source.read, *n) for s, n in names.items()},
      tokenizer=tokenizer.Tokenizer(kind="byte"),
      vocabulary_splits=("train",),
      source={"path": str(place), "python": platform.python_version()},
      fingerprint=source.fingerprint,
    )


def split_of(name: str) -> str:
  """Returns the split that a file is in, by a hash of its name."""
  data = name.encode("utf-8", "surrogateescape")
  percent = int(hashlib.sha256(data).hexdigest(), 16) % 100
  if percent < 3:
    return "valid"
  return "test" if percent < 6 else "train"
