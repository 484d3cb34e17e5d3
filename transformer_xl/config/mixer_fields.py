"""The mixers that layers may have, and the fields that single mixers add.

The mixers themselves are in `model/mixers/`; a test holds that both agree.
"""

from typing import NamedTuple

from transformer_xl.config.fields import field
from transformer_xl.config.fields import group


class MixerRules(NamedTuple):
  """What the rules need to know about a mixer."""

  attends: bool = False  # Settings of attention concern it.
  takes_limit: bool = False  # Its memory may be shorter than the model's.
  attends_zeros: bool = True  # With memory_start="zeros", if it attends.
  writes_segments: bool = False  # Results depend on where a segment starts.


MIXERS = {
  "attention": MixerRules(attends=True, takes_limit=True),
  "block_recurrent": MixerRules(
    attends=True, takes_limit=True, attends_zeros=False, writes_segments=True
  ),
  "compressive": MixerRules(attends=True, attends_zeros=False),
  "delta": MixerRules(),
  "lstm": MixerRules(),
  "memorizing": MixerRules(attends=True, takes_limit=True, attends_zeros=False),
  "qrnn": MixerRules(),
}


@group
class CompressiveConfig:
  """The compressed memory of `compressive` layers (docs/memory.md)."""

  function: str = field("conv", ("mean", "max", "conv"))
  """What makes a slot of the states that leave memory: their mean, their
  largest channels or a convolution."""
  rate: int = field(4, "at least 1")
  """Number of states in one slot."""
  slots: int = field(128, "at least 1")
  """Length of the compressed memory in slots; it may differ in evaluation."""


@group
class DeltaConfig:
  """The heads of `delta` layers, `num_heads` in number (docs/memory.md)."""

  key_dim: int = field(64, "at least 1")
  """Width of the keys and queries of one head."""
  value_dim: int = field(64, "at least 1")
  """Width of the values of one head; it remembers key_dim x value_dim
  numbers."""


@group
class MemorizingConfig:
  """What `memorizing` layers retrieve (docs/memory.md)."""

  window: int = field(128, "at least 1")
  """Largest distance that is attended to as usual; what is farther is
  retrieved. It may differ in evaluation."""
  top_k: int = field(32, "at least 1")
  """Number of tokens that each head of a query retrieves; it may differ in
  evaluation."""


@group
class BlockRecurrentConfig:
  """The state of `block_recurrent` layers (docs/memory.md)."""

  num_vectors: int = field(128, "at least 1")
  """Number of vectors that are read and written once a segment."""
