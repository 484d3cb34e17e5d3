"""The mixers by name, and the pattern of layers that a model has.

A new mixer is a file and a line here; its name and what the rules need to know
of it go into `config/mixer_fields.py`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from transformer_xl.config import schema
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import block_recurrent
from transformer_xl.model.mixers import compressive
from transformer_xl.model.mixers import delta
from transformer_xl.model.mixers import lstm
from transformer_xl.model.mixers import memorizing
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import qrnn

MIXERS: Mapping[str, type[mixer.Mixer]] = {
  "attention": attention.Attention,
  "block_recurrent": block_recurrent.BlockRecurrent,
  "compressive": compressive.Compressive,
  "delta": delta.Delta,
  "lstm": lstm.LSTM,
  "memorizing": memorizing.Memorizing,
  "qrnn": qrnn.QRNN,
}


class Layer(NamedTuple):
  """One place of the pattern."""

  name: str  # Of the mixer.
  limit: int  # The most positions that it remembers; 0 for no limit.

  @property
  def mixer(self) -> type[mixer.Mixer]:
    """The class of the mixer."""
    return MIXERS[self.name]

  def mem_len(self, mem_len: int) -> int:
    """The length of the layer's memory if that of the model is `mem_len`."""
    return min(mem_len, self.limit or mem_len)


def pattern(config: schema.ModelConfig) -> tuple[Layer, ...]:
  """The layers that repeat, lowest first; one entry if all are alike."""
  return tuple(Layer(name, limit) for name, limit in config.pattern)


def all_layers(config: schema.ModelConfig) -> tuple[Layer, ...]:
  """Every layer of a model, lowest first."""
  places = pattern(config)
  return places * (config.num_layers // len(places))
