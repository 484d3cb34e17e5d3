"""The vanilla counterpart of a model: equally many parameters, no recurrence.

A Transformer without recurrence adds sinusoids to its embeddings (Vaswani et
al. 2017) and needs no projection of distances. Its feed-forward layers are
wider instead, by the same number of parameters.
"""

import dataclasses
from typing import Any

import ml_collections

from transformer_xl.config import schema


def twin(model: schema.ModelConfig) -> schema.ModelConfig:
  """The vanilla model of the same size, up to half a feed-forward unit."""
  return dataclasses.replace(model, **_changes(model))


def make_vanilla(config: ml_collections.ConfigDict) -> None:
  """Turns an experiment into its vanilla counterpart, without memory."""
  config.model.update(_changes(config.model))
  config.train.mem_len = 0
  config.train.clamp_len = config.eval.clamp_len = 0
  config.eval.mem_len = (0,)


def _changes(model: Any) -> dict[str, Any]:
  """Replaces one layer's W_R by feed-forward units.

  The 2 H Dh parameters of u and v in the whole model are not replaced.
  """
  attention_dim = model.num_heads * model.head_dim
  units = round(model.model_dim * attention_dim / (2 * model.model_dim + 1))
  return {"encoding": "absolute", "ff_dim": model.ff_dim + units}
