"""The vanilla counterpart of a model: equally many parameters, no recurrence.

A Transformer without recurrence adds sinusoids to its embeddings (Vaswani et
al. 2017) and needs no projection of distances. Its feed-forward layers are
wider instead, by the same number of parameters.
"""

from typing import Any


def changes(model: Any) -> dict[str, Any]:
  """Fields of `config.model` that turn a model into its counterpart.

  Feed-forward units replace one layer's W_R, to half a unit. The 2 H Dh
  parameters of u and v in the whole model are not replaced.
  """
  attention_dim = model.num_heads * model.head_dim
  units = round(model.model_dim * attention_dim / (2 * model.model_dim + 1))
  return {
    "encoding": "absolute",
    "ff_dim": model.ff_dim + units,
  }
