"""The vanilla twin of a model: as many parameters, absolute positions.

A Transformer without recurrence adds sinusoids to its embeddings (Vaswani et
al. 2017) and needs no projection of distances; its feed-forward layers are
made wider by as many parameters.
"""

import dataclasses

from transformer_xl.config import schema


def twin(model: schema.ModelConfig) -> schema.ModelConfig:
  """The vanilla model with the same number of parameters, to half a unit."""
  return dataclasses.replace(
    model,
    encoding="absolute",
    ff_dim=model.ff_dim
    + more_units(
      model_dim=model.model_dim,
      attention_dim=model.num_heads * model.head_dim,
    ),
  )


def more_units(*, model_dim: int, attention_dim: int) -> int:
  """Feed-forward units with the parameters of one layer's W_R.

  u and v, 2 H Dh numbers in all the model, are not made up for.
  """
  return round(model_dim * attention_dim / (2 * model_dim + 1))
