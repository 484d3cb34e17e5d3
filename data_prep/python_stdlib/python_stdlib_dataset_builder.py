"""TFDS builder of Python's standard library; needs no TensorFlow."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets.public_api as tfds

from data_prep import corpus as data_prep_corpus
from data_prep import records
from data_prep.python_stdlib import corpus as python_stdlib_corpus


class Builder(tfds.core.GeneratorBasedBuilder):
  """Builds the Python standard library's sources, a record for every file."""

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = records.RELEASE_NOTES

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=records.features(),
      homepage="https://docs.python.org/3/library/",
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # The running Python has it.
    corpus = python_stdlib_corpus.open_corpus(path=None)
    return {s: self._generate_examples(t) for s, t in corpus.splits.items()}

  def _generate_examples(
    self, split: data_prep_corpus.Split
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    return records.by_document(split)
