"""The base class of the TFDS builders, and the kinds of records.

A builder's records and the token files are made from the same `open_corpus`.
Token files are not made from record files: to write and read a record for each
sentence takes seven times as long (docs/measurements/data.md).
"""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import ClassVar

import tensorflow_datasets.public_api as tfds

from data_prep import corpus as corpus_lib
from data_prep import piece as piece_lib

# A key, which is the position in the split, and {"text": bytes}.
Record = tuple[int, dict[str, Any]]


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
  # Takes `path`, a file or folder of the user's or None, and `cache`, the
  # folder of downloads; returns a Corpus.
  open_corpus: ClassVar[Callable[..., corpus_lib.Corpus]]
  # One of the functions below.
  records: ClassVar[Callable[..., Iterator[Record]]]

  def __init_subclass__(cls, **options: Any) -> None:
    """Keeps names such as lm1b in TFDS for its own datasets."""
    super().__init_subclass__(skip_registration=True, **options)

  def __init__(self, *, data_dir: str | None = None, **options: Any):
    """Keeps records below `data_dir`, and not in the user's home folder."""
    data_dir = data_dir or "data/tensorflow_datasets"
    super().__init__(data_dir=data_dir, **options)  # type: ignore[call-arg]

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
      homepage=self.HOMEPAGE,
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[Record]]:
    try:
      path = str(dl_manager.manual_dir)
    except AssertionError:  # What TFDS raises for a folder that is not there.
      path = None
    cache = pathlib.Path(dl_manager.download_dir)
    corpus = self.open_corpus(path=path, cache=cache)
    return {s: self._generate_examples(t) for s, t in corpus.splits.items()}

  def _generate_examples(self, split: corpus_lib.Split) -> Iterator[Record]:
    return self.records(split)


def by_piece(split: corpus_lib.Split) -> Iterator[Record]:
  """Yields records of about a megabyte, for text without documents."""
  for key, piece in enumerate(split()):
    yield key, {"text": piece.data}


def by_document(split: corpus_lib.Split) -> Iterator[Record]:
  """Yields one record per document."""
  for key, document in enumerate(piece_lib.documents(split())):
    yield key, {"text": document}


def by_line(split: corpus_lib.Split) -> Iterator[Record]:
  """Yields one record per line, without its end."""
  lines = (
    line
    for piece in split()
    for line in piece.data.removesuffix(b"\n").split(b"\n")
  )
  for key, line in enumerate(lines):
    yield key, {"text": line}
