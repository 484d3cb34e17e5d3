"""TFDS builder of WikiText-2; needs no TensorFlow."""

import functools

from data_prep import builder
from data_prep import wikitext


class Builder(builder.CorpusBuilder):
  """Builds WikiText-2, one record per article."""

  HOMEPAGE = "https://wikitext.smerity.com"
  open_corpus = staticmethod(
    functools.partial(wikitext.open_corpus, "wikitext2")
  )
  records = staticmethod(builder.by_document)
