"""Facts about the encodings of order that the rules of a configuration need.

The encodings themselves are in `model/encodings/`; a test holds that both
tables name the same ones and agree.
"""

from typing import NamedTuple


class Facts(NamedTuple):
  """What a configuration may ask of an encoding."""

  clamps: bool  # Distances beyond `clamp_len` can share one encoding.


FACTS = {
  "relative": Facts(clamps=True),
  "relative_tied": Facts(clamps=True),
  "shaw": Facts(clamps=False),
  "absolute": Facts(clamps=False),
  "absolute_per_layer": Facts(clamps=False),
}
