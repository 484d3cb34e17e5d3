"""The compiled update, and the state and memory that it goes through.

Training runs it, `--mode=plan` has it compiled for another machine, and the
benchmarks time it: all the same one.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.training import averaging
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.workdir import train_state


def creators(
  config: schema.ExperimentConfig,
) -> tuple[
  Callable[[], train_state.TrainState], Callable[[], memory_lib.Memory]
]:
  """Functions that make the first state and memory."""
  create_memory = functools.partial(
    transformer_xl.empty_memory,
    config.model,
    batch_size=config.train.batch_size,
    mem_len=config.train.mem_len,
  )
  return functools.partial(init_state, config), create_memory


def abstract_state(
  config: schema.ExperimentConfig,
) -> tuple[train_state.TrainState, memory_lib.Memory]:
  """State and memory as shapes."""
  state, memory = (jax.eval_shape(create) for create in creators(config))
  return state, memory


def placed_state(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[train_state.TrainState, memory_lib.Memory]:
  """State and memory as shapes with their places on the mesh."""
  state, memory = abstract_state(config)
  return (
    mesh_lib.placed(state, mesh_lib.parameters(mesh, state)),
    mesh_lib.placed(memory, mesh_lib.parameters(mesh, memory)),
  )


def init_state(config: schema.ExperimentConfig) -> train_state.TrainState:
  """Parameters drawn from the seed, and an optimizer that saw nothing."""
  key = jax.random.fold_in(jax.random.key(config.seed), 0)
  params = transformer_xl.init_params(config.model, key)
  optimizer = optimizer_lib.make_optimizer(config.train)
  kind, average, start = config.train.average_kind, None, None
  if kind:  # A copy: the state is donated, a buffer can be given away once.
    average = jax.tree.map(jnp.copy, params)
  if kind == "asgd":
    start = jnp.asarray(averaging.Start(config.train).step, jnp.int32)
  step = jnp.zeros((), jnp.int32)
  return train_state.TrainState(
    step, params, optimizer.init(params), average, start
  )
