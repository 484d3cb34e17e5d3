"""Where training runs: its mesh, placed arrays and compiled functions.

Training, `--mode=plan` and the benchmarks all use these functions, so what is
planned and timed is what trains.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from transformer_xl import mesh as mesh_lib
from transformer_xl import mesh_axes
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.model import network
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training import rate_factors
from transformer_xl.training import step
from transformer_xl.workdir import run_state


def make_mesh(
  config: schema.ExperimentConfig,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """The mesh of training, over this machine's devices or others.

  Raises:
    UserError: the axes that the configuration gives do not suit the devices.
  """
  model = config.model
  train = config.train
  demand = mesh_axes.Demand(
    lanes=train.batch_size // train.accumulation_steps,
    width=model.model_dim,
    heads=math.gcd(model.num_kv_heads, model.ff_dim),
    state_bytes=_state_bytes(config),
  )
  return mesh_lib.make_mesh(config.mesh, demand=demand, devices=devices)


def validation_config(
  config: schema.ExperimentConfig,
) -> schema.ExperimentConfig:
  """The configuration that validations during training are made with."""
  values = {
    "eval.split": "valid",
    "eval.mem_len": (config.train.mem_len,),
    "eval.temperature": (1.0,),  # Those are for the split that is reported.
  }
  return load.replaced(config, values)


def describe_mesh(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> str:
  """The axes of the mesh and the lanes of training, in one sentence."""
  train = config.train
  return mesh_lib.describe(
    mesh, train.batch_size, parts=train.accumulation_steps
  )


def _state_bytes(config: schema.ExperimentConfig) -> int:
  """Size of parameters, optimizer state and averages."""
  state, _ = abstract_state(config)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def init_state(
  config: schema.ExperimentConfig, params: shapes.PyTree = None
) -> run_state.TrainState:
  """Parameters, by default drawn from the seed, with a new optimizer."""
  if params is None:
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    params = network.init_params(config.model, key)
  rate_factors.of(params, config.train)  # Refuses patterns that match nothing.
  opt_state = optimizer_lib.make_optimizer(config.train).init(params)
  state = run_state.TrainState(jnp.zeros((), jnp.int32), params, opt_state)
  if config.train.average_kind:  # Each donated buffer must appear once.
    state = state._replace(average=jax.tree.map(jnp.copy, params))
  return state


def init_memory(config: schema.ExperimentConfig) -> network.State:
  """Empty memory of the training lanes."""
  return network.empty_state(
    config.model,
    batch_size=config.train.batch_size,
    mem_len=config.train.mem_len,
    step_len=config.train.context_len + config.train.segment_len,
  )


@functools.cache
def abstract_state(config: schema.ExperimentConfig) -> step.Carry:
  """State and memory as shapes and types."""
  return jax.eval_shape(lambda: (init_state(config), init_memory(config)))


def placed_state(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> step.Carry:
  """State and memory as shapes and types with their shardings."""
  return mesh_lib.placed(abstract_state(config), shardings(config, mesh))


def shardings(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> step.Carry:
  """The shardings of all arrays of state and memory."""
  splits = network.splits(config.model)
  return mesh_lib.parameters(mesh, abstract_state(config), splits)


def creators(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> tuple[Callable[..., run_state.TrainState], Callable[[], network.State]]:
  """Compiled functions that make the first state and an empty memory.

  The first takes the parameters, which are donated, or draws them.
  """
  state, memory = shardings(config, mesh)
  create = functools.partial(init_state, config)
  return (
    jax.jit(create, out_shardings=state, donate_argnums=0),
    jax.jit(functools.partial(init_memory, config), out_shardings=memory),
  )


def update(
  config: schema.ExperimentConfig, mesh: jax.sharding.Mesh
) -> jax.stages.Wrapped:
  """The compiled function of some updates (`step.train_chunk`).

  State and memory are donated.
  """
  return jax.jit(
    functools.partial(step.train_chunk, config=config),
    donate_argnums=(0, 1),
    out_shardings=(*shardings(config, mesh), mesh_lib.replicated(mesh)),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
