"""The vanilla counterpart of a model: equally many parameters, no recurrence.

A Transformer without recurrence adds sinusoids to its embeddings (Vaswani et
al. 2017), and no parameter belongs to them. Its feed-forward layers are wider
by as many parameters as the other model's encoding and memory have.
"""

import dataclasses
import math
from typing import Any

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.model import network


def changes(model: schema.ModelConfig) -> dict[str, Any]:
  """Fields of `config.model` that turn a model into its counterpart.

  A mesh can split the feed-forward units between as many devices as before, so
  the number of parameters is the same up to a few units.
  """
  values: dict[str, Any] = {
    "encoding": "absolute",
    "layers": schema.all_fields()["model.layers"].default,
  }
  twin = dataclasses.replace(model, **values)
  wider = dataclasses.replace(twin, ff_dim=model.ff_dim + 1)
  missing = _num_parameters(model) - _num_parameters(twin)
  unit = _num_parameters(wider) - _num_parameters(twin)
  step = math.gcd(model.num_heads, model.ff_dim)
  values["ff_dim"] = step * round((model.ff_dim + missing / unit) / step)
  return {
    name: value
    for name, value in values.items()
    if value != getattr(model, name)
  }


def _num_parameters(model: schema.ModelConfig) -> int:
  """Counts parameters without a device.

  Configurations are made before processes join each other, and JAX may not use
  its devices before that. The vocabulary and the type of numbers may still be
  unknown; neither changes a difference between counts.
  """
  model = dataclasses.replace(
    model,
    vocab_size=model.vocab_size or max(model.cutoffs, default=0) + 1,
    dtype="float32",
  )
  device = jax.sharding.AbstractDevice(
    device_kind="cpu", num_cores=None, platform="cpu"
  )
  # As the mesh of a run: what is cached below is read there, too.
  mesh = jax.sharding.AbstractMesh(
    (1,) * len(mesh_lib.AXES),
    mesh_lib.AXES,
    axis_types=mesh_lib.AXIS_TYPES,
    abstract_device=device,
  )
  with jax.sharding.use_abstract_mesh(mesh):
    return network.num_parameters(network.abstract_params(model))
