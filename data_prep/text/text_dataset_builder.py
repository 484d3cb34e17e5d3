"""TFDS builder of anybody's own text; needs no TensorFlow."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets.public_api as tfds

from data_prep import corpus as data_prep_corpus
from data_prep import records
from data_prep import tokenizer
from data_prep.text import corpus as text_corpus


class Builder(tfds.core.GeneratorBasedBuilder):
  """Builds anybody's own text, a record for every document."""

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES = records.RELEASE_NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Put .txt, .txt.gz and .jsonl files, these with a field "text", into the
  folder; files named train, valid and test are those splits.
  """

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=records.features(),
      homepage="https://jsonlines.org",
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    corpus = text_corpus.open_corpus(
      text_corpus.Options(),
      tokenizer.of_text("byte"),
      source=str(dl_manager.manual_dir),
    )
    return {s: self._generate_examples(t) for s, t in corpus.splits.items()}

  def _generate_examples(
    self, split: data_prep_corpus.Split
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    return records.by_document(split)
