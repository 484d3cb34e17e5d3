"""TFDS builder of the Penn Treebank; needs no TensorFlow."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets.public_api as tfds

from data_prep import corpus as data_prep_corpus
from data_prep import records
from data_prep.ptb import corpus as ptb_corpus


class Builder(tfds.core.GeneratorBasedBuilder):
  """Builds the Penn Treebank, a record for every megabyte."""

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = records.RELEASE_NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = records.MANUAL_DOWNLOAD_INSTRUCTIONS

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=records.features(),
      homepage="https://catalog.ldc.upenn.edu/LDC99T42",
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    corpus = ptb_corpus.open_corpus(
      path=records.manual_source(dl_manager), cache=records.cache(dl_manager)
    )
    return {s: self._generate_examples(t) for s, t in corpus.splits.items()}

  def _generate_examples(
    self, split: data_prep_corpus.Split
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    return records.by_piece(split)
