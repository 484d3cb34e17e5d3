"""The compiled update, and the state and memory that it goes through.

Training runs it, `--mode=plan` has it compiled for another machine, and the
benchmarks time it: all the same one.
"""

import functools
from collections.abc import Callable

import jax

from transformer_xl import config as config_lib
from transformer_xl import memory as memory_lib
from transformer_xl import model as model_lib
from transformer_xl import sharding
from transformer_xl import step as step_lib


def compiled_update(
  config: config_lib.ExperimentConfig, mesh: jax.sharding.Mesh
) -> jax.stages.Wrapped:
  """`train_chunk` with state and memory given away and kept in place."""
  training = step_lib.make_training(config)
  places = jax.tree.map(lambda leaf: leaf.sharding, placed_state(config, mesh))
  return jax.jit(
    functools.partial(step_lib.train_chunk, training=training),
    donate_argnums=(0, 1),
    out_shardings=(*places, sharding.replicated(mesh)),
    compiler_options=sharding.compiler_options(mesh),
  )


def creators(
  config: config_lib.ExperimentConfig,
) -> tuple[Callable[[], step_lib.TrainState], Callable[[], memory_lib.Memory]]:
  """Functions that make the first state and memory."""
  create_memory = functools.partial(
    model_lib.empty_memory,
    config.model,
    batch_size=config.train.batch_size,
    mem_len=config.train.mem_len,
  )
  return functools.partial(step_lib.init_state, config), create_memory


def abstract_state(
  config: config_lib.ExperimentConfig,
) -> tuple[step_lib.TrainState, memory_lib.Memory]:
  """State and memory as shapes."""
  state, memory = (jax.eval_shape(create) for create in creators(config))
  return state, memory


def placed_state(
  config: config_lib.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[step_lib.TrainState, memory_lib.Memory]:
  """State and memory as shapes with their places on the mesh."""
  state, memory = abstract_state(config)
  return (
    sharding.placed(state, sharding.parameters(mesh, state)),
    sharding.placed(memory, sharding.parameters(mesh, memory)),
  )
