"""Learned vectors of places in the segment, added in every layer."""

from tests.oracles import cases


def added(params, place):
  return params["positions"][place]


CASES = ()
REST = (
  cases.Case(
    3, 7, 0, None, {"encoding": "absolute_per_layer", "pre_norm": True}
  ),
  # A table as long as the segment.
  cases.Case(
    4, 0, 0, None, {"encoding": "absolute_per_layer", "num_positions": 4}
  ),
)
PARAMETERS = ("layers/0/positions",)
NO_MATRICES = ("positions",)
