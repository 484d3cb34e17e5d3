"""Where training runs: its mesh, placed arrays and compiled functions.

Training, `--mode=plan` and the benchmarks all use these functions, so what is
planned and timed is what trains.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.training import averaging
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training import step
from transformer_xl.workdir import run_state


def make_mesh(
  config: schema.ExperimentConfig,
  *,
  devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
  """The mesh of training.

  Args:
    config: of the run.
    devices: to compile for; this machine's by default.

  Raises:
    UserError: devices or lanes do not divide.
  """
  train = config.train
  lanes = (train.batch_size // train.accumulation_steps,)
  return mesh_lib.make_mesh(config.mesh, lanes=lanes, devices=devices)


def make_evaluation_mesh(
  config: schema.ExperimentConfig,
) -> jax.sharding.Mesh:
  """The mesh of validations, which may leave devices of training idle.

  Raises:
    UserError: devices or lanes do not divide.
  """
  lanes = (config.eval.batch_size,)
  devices = mesh_lib.evaluation_devices(config.mesh, lanes=lanes)
  return mesh_lib.make_mesh(config.mesh, lanes=lanes, devices=devices)


def init_state(config: schema.ExperimentConfig) -> run_state.TrainState:
  """Parameters drawn from the seed, with a new optimizer."""
  key = jax.random.fold_in(jax.random.key(config.seed), 0)
  params = transformer_xl.init_params(config.model, key)
  optimizer = optimizer_lib.make_optimizer(config.train)
  kind, average, start = config.train.average_kind, None, None
  if kind:  # A copy, since each donated buffer must appear once.
    average = jax.tree.map(jnp.copy, params)
  if kind == "asgd":
    start = jnp.asarray(averaging.configured_start(config.train), jnp.int32)
  return run_state.TrainState(
    jnp.zeros((), jnp.int32), params, optimizer.init(params), average, start
  )


def init_memory(config: schema.ExperimentConfig) -> memory_lib.Memory:
  """Empty memory of the training lanes."""
  return transformer_xl.empty_memory(
    config.model,
    batch_size=config.train.batch_size,
    mem_len=config.train.mem_len,
  )


def abstract_state(
  config: schema.ExperimentConfig,
) -> tuple[run_state.TrainState, memory_lib.Memory]:
  """State and memory as shapes and types."""
  state, memory = (
    jax.eval_shape(functools.partial(init, config))
    for init in (init_state, init_memory)
  )
  return state, memory


def placed_state(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[run_state.TrainState, memory_lib.Memory]:
  """State and memory as shapes and types with their shardings."""
  state, memory = abstract_state(config)
  return (
    mesh_lib.placed(state, mesh_lib.parameters(mesh, state)),
    mesh_lib.placed(memory, mesh_lib.parameters(mesh, memory)),
  )


def shardings(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[run_state.TrainState, memory_lib.Memory]:
  """The shardings of all arrays of state and memory."""
  placed: tuple[run_state.TrainState, memory_lib.Memory] = jax.tree.map(
    lambda leaf: leaf.sharding, placed_state(config, mesh)
  )
  return placed


def creators(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[Callable[[], run_state.TrainState], Callable[[], memory_lib.Memory]]:
  """Compiled functions that make the first state and an empty memory."""
  state, memory = shardings(config, mesh)
  return (
    jax.jit(functools.partial(init_state, config), out_shardings=state),
    jax.jit(functools.partial(init_memory, config), out_shardings=memory),
  )


def update(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> jax.stages.Wrapped:
  """`step.train_chunk`, compiled; state and memory are donated."""
  return jax.jit(
    functools.partial(step.train_chunk, training=step.make_training(config)),
    donate_argnums=(0, 1),
    out_shardings=(*shardings(config, mesh), mesh_lib.replicated(mesh)),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
