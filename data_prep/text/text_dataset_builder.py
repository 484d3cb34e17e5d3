"""TFDS builder of your own text; needs no TensorFlow."""

from data_prep import builder
from data_prep.text import corpus


class Builder(builder.CorpusBuilder):
  """Builds your own text, one record per document."""

  HOMEPAGE = "https://jsonlines.org"
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Put files of text into the folder; those named train, valid and test are
  splits.
  """
  open_corpus = staticmethod(corpus.open_corpus)
