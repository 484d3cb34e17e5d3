"""Sinusoids of places in the segment, added to embeddings."""

from tests.oracles import cases
from tests.oracles import heads


def embedded(config, place):
  return heads.sinusoids(place, config.model_dim, 0)


CASES = (cases.Case(4, 0, 0, None, {"encoding": "absolute"}),)
REST = (cases.Case(3, 7, 0, "mem_len", cases.ZEROS | {"encoding": "absolute"}),)
