"""The parameters of a finished run."""

import functools

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import transformer_xl
from transformer_xl.workdir import checkpoint


def load_params(
  config: schema.ExperimentConfig, workdir: str, mesh: jax.sharding.Mesh
) -> tuple[shapes.PyTree, int]:
  """The parameters that `config.eval` names, on the mesh, and their step."""
  create = functools.partial(transformer_xl.init_params, config.model)
  abstract = jax.eval_shape(create, jax.random.key(0))
  target = mesh_lib.placed(abstract, mesh_lib.parameters(mesh, abstract))
  return checkpoint.restore_params(
    workdir,
    which=config.eval.checkpoint,
    average=config.eval.parameters != "raw",
    target=target,
  )
