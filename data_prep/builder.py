"""The base classes of the TFDS builders.

A builder's records and the token files are made from the same `open_corpus`.
Token files are not made from record files: to write and read a record for each
sentence takes seven times as long.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import tensorflow_datasets.public_api as tfds

from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import download
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib

# The published counts of each mode of a corpus, as `Corpus` has them.
Published = dict[str | None, corpus_lib.Published]

# The key of a record, and its features.
Example = tuple[int, dict[str, bytes]]


# TFDS states no types of its classes.
class CorpusBuilder(  # type: ignore[call-arg]
  tfds.core.GeneratorBasedBuilder, skip_registration=True
):
  """Builds the records of a corpus in the order of its text.

  Subclasses open the corpus and choose the kind of record. TensorFlow is not
  needed, neither to build nor to read array_record files.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Without internet, put the archive as published, or its files, into the folder.
  Otherwise the archive is downloaded.
  """
  HOMEPAGE: ClassVar[str]
  # One archive, or the files that mirrors offer instead of it.
  ARCHIVES: ClassVar[tuple[download.Archive, ...]] = ()
  registered_name: ClassVar[str]
  # What each value of `--mode` is for; none if there is one mode.
  MODES: ClassVar[Mapping[str, str]] = {}
  # Takes `path`, a file or folder of the user's or None, and `cache`, the
  # folder of downloads; returns a Corpus.
  open_corpus: ClassVar[Callable[..., corpus_lib.Corpus]]

  def __init_subclass__(cls, **options: object) -> None:
    """Keeps names such as lm1b in TFDS for its own datasets."""
    super().__init_subclass__(skip_registration=True, **options)

  def __init__(self, *, data_dir: str | None = None, **options: object):
    """Keeps records below `data_dir`, and not in the user's home folder."""
    data_dir = data_dir or "data/tensorflow_datasets"
    super().__init__(data_dir=data_dir, **options)  # type: ignore[call-arg]

  @staticmethod
  def records(pieces: piece_lib.Pieces) -> Iterator[bytes]:
    """Cuts the text of a split into records, here one per document."""
    return piece_lib.documents(pieces)

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
      homepage=self.HOMEPAGE,
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[Example]]:
    try:
      path = str(dl_manager.manual_dir)
    except AssertionError:  # What TFDS raises for a folder that is not there.
      path = None
    cache = pathlib.Path(dl_manager.download_dir)
    corpus = self.open_corpus(path=path, cache=cache)
    corpus = corpus.unpacked(cache / corpus.name)
    return {s: self._generate_examples(t) for s, t in corpus.splits.items()}

  def _generate_examples(self, split: corpus_lib.Split) -> Iterator[Example]:
    # The key is the position in the split.
    for key, text in enumerate(self.records(split())):
      yield key, {"text": text}


class BenchmarkBuilder(CorpusBuilder):
  """Builds a published corpus, of which each split is a file or part of one."""

  # Last parts of the path of a split's file, the usual one first, with {} for
  # the split; and what the user may give instead, for messages.
  FILES: ClassVar[tuple[str, ...]]
  NEEDED: ClassVar[str]
  TOKENIZER: ClassVar[tokenizer_lib.Tokenizer]
  VOCABULARY_SPLITS: ClassVar[tuple[str, ...]] = corpus_lib.SPLITS
  PUBLISHED: ClassVar[Published]  # The usual mode first.

  @classmethod
  def open_corpus(
    cls, *, path: str | None, cache: pathlib.Path, mode: str | None = None
  ) -> corpus_lib.Corpus:
    """Returns the corpus from its archive, or from a folder with its files."""
    mode = mode or next(iter(cls.PUBLISHED))
    source = download.locate(cls.ARCHIVES, path=path, cache=cache)
    splits: dict[str, corpus_lib.Split] = {}
    for split in corpus_lib.SPLITS:
      names = [name.format(split) for name in cls.FILES]
      file = source.member(*names, needed=cls.NEEDED)
      splits[split] = functools.partial(cls.read, source, file, split, mode)
    return corpus_lib.Corpus(
      name=cls.name,
      splits=splits,
      tokenizer=cls.TOKENIZER,
      vocabulary_splits=cls.VOCABULARY_SPLITS,
      mode=mode,
      published=cls.PUBLISHED[mode],
      source={"path": str(source.path)},
      fingerprint=source.fingerprint,
    )

  @staticmethod
  def read(
    source: source_lib.Source, file: str, *unused: Any
  ) -> piece_lib.Pieces:
    """Yields the text of a split from its file.

    Subclasses may also use the split and the mode, which follow.
    """
    return source.read(file)


def by_piece(pieces: piece_lib.Pieces) -> Iterator[bytes]:
  """Yields records of about a megabyte, for text without documents."""
  return (piece.data for piece in pieces)
