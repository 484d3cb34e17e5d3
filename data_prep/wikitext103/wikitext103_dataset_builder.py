"""TFDS builder of WikiText-103; needs no TensorFlow."""

from transformer_xl.config import registry
from transformer_xl.data_prep import builder
from transformer_xl.data_prep import download
from transformer_xl.data_prep.wikitext2 import (
  wikitext2_dataset_builder as wikitext2,
)

PUBLISHED: builder.Published = {
  None: {
    "num_words": (103_227_021, 217_646, 245_569),
    "num_lines": (1_801_350, 3_760, 4_358),
    "symbols": (267_735,),
  }
}


@registry.datasets.register("wikitext103")
class Builder(wikitext2.Builder):
  """Builds WikiText-103, one record per article."""

  ARCHIVES = download.published("wikitext103")
  VOCABULARY_SPLITS = ("train",)  # As published.
  PUBLISHED = PUBLISHED
