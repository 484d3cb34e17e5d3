"""The pattern of layers that a model has, and the mixer of each layer.

`model.layers` is the pattern; each of its P entries is a place. N layers are
N / P turns of the pattern, and layer `turn * P + place` is in that place.
"""

from typing import NamedTuple

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.mixers import mixer


class Place(NamedTuple):
  """One place of the pattern."""

  name: str  # Of the mixer.
  limit: int  # The most positions that it remembers; 0 for no limit.

  @property
  def mixer(self) -> type[mixer.Mixer]:
    """The class of the mixer."""
    kind = registry.mixers[self.name]
    assert issubclass(kind, mixer.Mixer)
    return kind

  def mem_len(self, mem_len: int) -> int:
    """The length of the layer's memory if that of the model is `mem_len`."""
    return min(mem_len, self.limit or mem_len)


def places(config: schema.ModelConfig) -> tuple[Place, ...]:
  """The layers that repeat, lowest first; one entry if all are alike."""
  return tuple(Place(name, limit) for name, limit in config.pattern)


def all_layers(config: schema.ModelConfig) -> tuple[Place, ...]:
  """Every layer of a model, lowest first."""
  one_turn = places(config)
  return one_turn * (config.num_layers // len(one_turn))
