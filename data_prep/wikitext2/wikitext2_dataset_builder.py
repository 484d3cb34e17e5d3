"""TFDS builder of WikiText-2; needs no TensorFlow."""

from data_prep import download
from data_prep import wikitext

PUBLISHED = {
  None: {
    "num_words": (2_088_628, 217_646, 245_569),
    "num_lines": (36_718, 3_760, 4_358),
    "symbols": (33_278,),
  }
}


class Builder(wikitext.Builder):
  """Builds WikiText-2, one record per article."""

  ARCHIVES = download.published("wikitext2")
  PUBLISHED = PUBLISHED
