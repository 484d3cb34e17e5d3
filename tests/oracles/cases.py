"""Models that the package and the oracle read alike."""

from typing import NamedTuple


class Case(NamedTuple):
  """Lengths, and which window rule if any."""

  segment_len: int
  mem_len: int
  clamp_len: int
  window: str | None
  model: dict


MASKED, ZEROS = {}, {"memory_start": "zeros"}
MODERN = {
  "norm": "rms",
  "pre_norm": True,
  "final_norm": True,
  "feed_forward": "swiglu",
  "qk_norm": True,
  "num_heads": 4,
  "num_kv_heads": 2,
}
FEW = ("attention:9", "attention:1", "attention")
