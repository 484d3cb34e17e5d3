"""One Billion Word: 30 million sentences of news in random order.

Training text is 99 files. As published, validation and test text are both the
first of the 50 held-out files. `<S>` stands between sentences. The mode
`standard` has one, which ends a sentence and starts the next, so a sentence of
n words takes n + 1 predictions. The mode `double_marker`, that of the
TensorFlow results, has two, and the prediction of the second is free.
"""

import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import corpus
from transformer_xl.data_prep import download
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer

# Its size and hash are not known; its words are counted.
VOCABULARY = download.Archive(
  filename="1b_word_vocab.txt",
  urls=("https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",),
)
VOCABULARY_SIZE = 793_470
PUBLISHED: corpus.Published = {
  "num_lines": (30_301_028, 6_075, 6_075),
  "num_words": (None, 159_658, 159_658),
}
_TOKENIZER = tokenizer.Tokenizer(kind="word", end_of_line="<S>", unk="<UNK>")
MARKERS = {"standard": 1, "double_marker": 2}
_HELD_OUT = r"(?:.*/)?news\.en\.heldout-00000-of-00050"
_FILES = {
  "train": r"(?:.*/)?news\.en-\d{5}-of-00100",
  "valid": _HELD_OUT,
  "test": _HELD_OUT,
}


@registry.datasets.register("lm1b")
class Builder(builder.CorpusBuilder):
  """Builds the One Billion Word benchmark, one record per sentence."""

  MODES: ClassVar[Mapping[str, str]] = {
    "standard": "one marker between sentences",
    "double_marker": "two of them, to count as the TensorFlow results do",
  }
  HOMEPAGE = "https://www.statmt.org/lm-benchmark/"
  ARCHIVES = download.published("lm1b")

  @staticmethod
  def records(pieces: piece_lib.Pieces) -> Iterator[bytes]:
    """Yields one record per line, without its end."""
    for piece in pieces:
      yield from piece.data.removesuffix(b"\n").split(b"\n")

  @staticmethod
  def open_corpus(
    *, path: str | None, cache: pathlib.Path, mode: str = "standard"
  ) -> corpus.Corpus:
    """Returns the corpus in the mode `standard` or `double_marker`."""
    source = download.locate(Builder.ARCHIVES, path=path, cache=cache)
    splits: dict[str, corpus.Split] = {}
    unpack = None
    if isinstance(source, source_lib.Tar):
      unpack = functools.partial(_unpack, source)
    else:
      splits = _splits_of(source)
    words = functools.partial(vocabulary_file, path=path, cache=cache)
    return corpus.Corpus(
      name="lm1b",
      splits=splits,
      unpack=unpack,
      tokenizer=_TOKENIZER,
      vocabulary_splits=("train",),
      published=PUBLISHED,
      published_words=words,
      mode=mode,
      sentence_markers=MARKERS[mode],
      source={"path": str(source.path)},
      fingerprint=source.fingerprint,
    )


def vocabulary_file(*, path: str | None, cache: pathlib.Path) -> str:
  """Returns the path of the published words; UserError if it is missing."""
  if path is None:
    found = download.fetch(VOCABULARY, cache)
  else:
    place = pathlib.Path(storage.expanded(path))
    folder = place if place.is_dir() else place.parent
    found = folder / VOCABULARY.filename
  problem = "is missing"
  if found.is_file():
    lines = found.read_bytes().split(b"\n")
    num_words = sum(map(bool, map(bytes.strip, lines)))
    if num_words == VOCABULARY_SIZE:
      return str(found)
    problem = f"has {num_words} words, not {VOCABULARY_SIZE}"
  raise errors.UserError(
    f"{found} {problem}; put the published words of lm1b there, give a list"
    " with --vocabulary_file, or count words yourself with --min_freq=3."
  )


def _unpack(
  archive: source_lib.Tar, folder: pathlib.Path
) -> dict[str, corpus.Split]:
  return _splits_of(source_lib.unpack(archive, folder, wanted=_is_wanted))


def _splits_of(source: source_lib.Source) -> dict[str, corpus.Split]:
  return {
    split: functools.partial(source.read, *names_of(source, split))
    for split in corpus.SPLITS
  }


def names_of(source: source_lib.Source, split: str) -> list[str]:
  """Returns the files of a split, sorted; UserError if there are none."""
  names = [name for name in source.names if re.fullmatch(_FILES[split], name)]
  if not names:
    raise errors.UserError(
      f"{source.path} has no {split} text of lm1b; give"
      f" {Builder.ARCHIVES[0].filename} or the folder in it."
    )
  return names


def _is_wanted(name: str) -> bool:
  return any(re.fullmatch(pattern, name) for pattern in _FILES.values())
