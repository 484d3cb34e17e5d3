"""TFDS builder of WikiText-103; needs no TensorFlow."""

import functools

from data_prep import builder
from data_prep import wikitext


class Builder(builder.CorpusBuilder):
  """Builds WikiText-103, one record per article."""

  HOMEPAGE = "https://wikitext.smerity.com"
  open_corpus = staticmethod(
    functools.partial(wikitext.open_corpus, "wikitext103")
  )
  records = staticmethod(builder.by_document)
