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
from collections.abc import Iterator
from collections.abc import Sequence

from data_prep import builder
from data_prep import corpus
from data_prep import download
from data_prep import piece
from data_prep import source as source_lib
from data_prep import tokenizer
from transformer_xl import errors

(ARCHIVE,) = download.published("lm1b")
# Its size and hash are not known; its words are counted.
VOCABULARY = download.Archive(
  filename="1b_word_vocab.txt",
  urls=("https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",),
)
VOCABULARY_SIZE = 793_470
PUBLISHED = {
  "train": {"num_lines": 30_301_028},
  "valid": {"num_lines": 6_075, "num_words": 159_658},
  "test": {"num_lines": 6_075, "num_words": 159_658},
}
MARKERS = {"standard": 1, "double_marker": 2}
_FILES = {
  "train": re.compile(r"(?:.*/)?news\.en-\d{5}-of-00100"),
  "valid": re.compile(r"(?:.*/)?news\.en\.heldout-00000-of-00050"),
  "test": re.compile(r"(?:.*/)?news\.en\.heldout-00000-of-00050"),
}


class Builder(builder.CorpusBuilder):
  """Builds the One Billion Word benchmark, one record per sentence."""

  HOMEPAGE = "https://www.statmt.org/lm-benchmark/"
  records = staticmethod(builder.by_line)

  @staticmethod
  def open_corpus(
    *, path: str | None, cache: pathlib.Path, mode: str = "standard"
  ) -> corpus.Corpus:
    """Returns the corpus in the mode `standard` or `double_marker`."""
    if mode not in MARKERS:
      raise errors.UserError(
        f"--mode={mode} is none of lm1b's modes; use standard, or"
        " double_marker to count as the TensorFlow results do."
      )
    given: source_lib.Source = download.locate(
      [ARCHIVE], path=path, cache=cache
    )
    source, scratch = given, None
    if isinstance(given, source_lib.Tar):
      scratch = cache / "lm1b"
      source = source_lib.unpack(given, scratch, wanted=_is_wanted)
    return corpus.Corpus(
      name="lm1b",
      splits={
        split: functools.partial(read, source, names_of(source, split))
        for split in _FILES
      },
      tokenizer=tokenizer.Tokenizer(
        kind="word", special=("<S>", "<UNK>"), end_of_line="<S>", unk="<UNK>"
      ),
      vocabulary_splits=("train",),
      source={"path": str(given.path)},
      fingerprint=given.fingerprint(),
      published=PUBLISHED,
      mode=mode,
      sentence_markers=MARKERS[mode],
      scratch=scratch,
    )


def vocabulary_file(*, path: str | None, cache: pathlib.Path) -> str:
  """Returns the path of the published words; UserError if it is missing."""
  if path is None:
    found = download.fetch(VOCABULARY, cache)
  else:
    place = pathlib.Path(path).expanduser()
    folder = place if place.is_dir() else place.parent
    found = folder / VOCABULARY.filename
  if not found.is_file():
    raise errors.UserError(
      f"{found} is missing, the published words of lm1b; put it there, give"
      " another list with --vocabulary_file, or count words yourself with"
      " --min_freq=3."
    )
  with open(found, "rb") as file:
    num_words = sum(1 for line in file if line.strip())
  if num_words != VOCABULARY_SIZE:
    raise errors.UserError(
      f"{found} has {num_words} words, not the published {VOCABULARY_SIZE};"
      " fetch it again, or give it with --vocabulary_file to use it anyway."
    )
  return str(found)


def names_of(source: source_lib.Source, split: str) -> list[str]:
  """Returns the files of a split, sorted; UserError if there are none."""
  names = [name for name in source.names() if _FILES[split].fullmatch(name)]
  if not names:
    raise errors.UserError(
      f"{source.path} has no {split} text of lm1b; give {ARCHIVE.filename} or"
      " the folder in it."
    )
  return names


def read(
  source: source_lib.Source, names: Sequence[str]
) -> Iterator[piece.Piece]:
  """Yields the sentences of some files, one per line."""
  for name in names:
    with source.open(name) as stream:
      yield from piece.cut(stream, origin=f"{source.path}/{name}")


def _is_wanted(name: str) -> bool:
  return any(pattern.fullmatch(name) for pattern in _FILES.values())
