"""One segment of all lanes, as the loader emits it."""

from typing import NamedTuple

from transformer_xl import shapes


class Segment(NamedTuple):
  """What the loader emits; the model never shifts labels."""

  inputs: shapes.Tokens
  targets: shapes.Tokens
  weights: shapes.Weights  # 0 where a target is not to be counted.
  resets: shapes.Resets  # True at the first token of a document.
