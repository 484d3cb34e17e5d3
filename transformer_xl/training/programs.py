"""Where training runs: its mesh, sharded arrays and compiled functions.

Training, `--mode=plan` and the benchmarks all use these functions, so what is
planned and timed is what trains.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import mesh_axes
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.model import random_streams
from transformer_xl.model import transfer
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training import rate_factors
from transformer_xl.training import step
from transformer_xl.workdir import run_state


def make_mesh(
  recipe: schema.Recipe,
  axes: schema.MeshConfig,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """The mesh of training, over this machine's devices or others.

  Raises:
    UserError: the axes that the configuration gives do not suit the devices.
  """
  model = recipe.model
  train = recipe.train
  demand = mesh_axes.Demand(
    lanes=train.batch_size // train.accumulation_steps,
    width=model.model_dim,
    heads=model.most_tensor_parts,
    state_bytes=_state_bytes(recipe),
  )
  return mesh_lib.make_mesh(axes, demand=demand, devices=devices)


def validation(scoring: schema.Scoring, mem_len: int) -> schema.Scoring:
  """How validations during training read, with the memory of training."""
  evaluation = dataclasses.replace(
    scoring.eval,
    split="valid",
    mem_len=(mem_len,),
    temperature=(1.0,),  # Those are for the split that is reported.
  )
  return dataclasses.replace(scoring, eval=evaluation)


def describe_mesh(train: schema.TrainConfig, mesh: jax.sharding.Mesh) -> str:
  """The axes of the mesh and the lanes of training, in one sentence."""
  return mesh_lib.describe(
    mesh, train.batch_size, parts=train.accumulation_steps
  )


def _state_bytes(recipe: schema.Recipe) -> int:
  """Size of parameters, optimizer state and averages."""
  state, _ = abstract_state(recipe)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def drawn_params(recipe: schema.Recipe) -> shapes.PyTree:
  """The parameters that the seed draws."""
  key = random_streams.key(recipe.seed, random_streams.Stream.PARAMETERS)
  return network.init_params(recipe.model, key)


def init_state(
  recipe: schema.Recipe, params: shapes.PyTree | None = None
) -> run_state.TrainState:
  """Parameters, by default drawn from the seed, with a new optimizer.

  With adapters (`train.lora`) they are the base, and what is trained is drawn.
  """
  adapters = lora.settings(recipe.train)
  base = None
  if params is None:
    params = drawn_params(recipe)
  if adapters:
    base = params
    params = _beside(base, adapters, recipe)
  rate_factors.of(params, recipe.train)  # Refuses patterns that match nothing.
  opt_state = optimizer_lib.make_optimizer(recipe.train).init(params)
  state = run_state.TrainState(
    jnp.zeros((), jnp.int32), params, opt_state, base=base
  )
  if recipe.train.average_kind:  # Each donated buffer must appear once.
    state = state._replace(average=jax.tree.map(jnp.copy, params))
  return state


def _taken(params: shapes.PyTree, recipe: schema.Recipe) -> shapes.PyTree:
  """The parameters that `train.init_from` has, of all that a model has.

  Raises:
    UserError: it has some layers of an array and not all.
  """
  train = recipe.train
  if train.init_rest == "refuse":
    return params
  source = load.from_config_dict(load.saved(train.init_from)).model
  flat = traverse_util.flatten_dict(params, sep="/")
  names = transfer.whole(source, recipe.model)
  cut = [
    name
    for name, layers in transfer.sources(source, recipe.model).items()
    if name not in names and any(path is not None for path, _ in layers)
  ]
  if cut:
    raise errors.UserError(
      f"train.init_from={train.init_from} has some layers of {cut[0]} and not "
      "all, which adapters cannot be beside: set --config.model.num_layers="
      f"{source.num_layers}, or --config.train.lora.rank=0."
    )
  return traverse_util.unflatten_dict(
    {name: flat[name] for name in names}, sep="/"
  )


def _beside(
  base: shapes.PyTree, adapters: lora.Settings, recipe: schema.Recipe
) -> shapes.PyTree:
  """Draws what is trained beside a base: adapters, and arrays that it lacks."""
  given = traverse_util.flatten_dict(base, sep="/")
  whole = traverse_util.flatten_dict(
    network.abstract_params(recipe.model), sep="/"
  )
  lacking = {}
  if whole.keys() - given.keys():  # Else the model need not be traced.
    drawn = traverse_util.flatten_dict(drawn_params(recipe), sep="/")
    lacking = {name: leaf for name, leaf in drawn.items() if name not in given}
  key = random_streams.key(recipe.seed, random_streams.Stream.ADAPTERS)
  new = lora.draw(key, given, adapters)
  return lora.nested(lacking | new, recipe.model)


def init_memory(recipe: schema.Recipe) -> network.State:
  """Empty memory of the training lanes."""
  train = recipe.train
  return network.empty_state(
    recipe.model,
    batch_size=train.batch_size,
    mem_len=train.mem_len,
    step_len=train.context_len + train.segment_len,
  )


def abstract_state(recipe: schema.Recipe) -> step.Carry:
  """State and memory as shapes and types."""
  # No number of a run changes them, so that all its trials trace them once.
  train = dataclasses.replace(recipe.train, learning_rate=1.0)
  return _abstract_state(dataclasses.replace(recipe, train=train, seed=0))


@functools.cache
def _abstract_state(recipe: schema.Recipe) -> step.Carry:
  params = network.abstract_params(recipe.model)  # Traced once for each model.
  if lora.settings(recipe.train):
    params = _taken(params, recipe)

  def create(params: shapes.PyTree) -> step.Carry:
    return init_state(recipe, params), init_memory(recipe)

  return jax.eval_shape(create, params)


def sharded_abstract_state(
  recipe: schema.Recipe, mesh: jax.sharding.Mesh
) -> step.Carry:
  """State and memory as shapes and types, with their shardings."""
  return mesh_lib.with_shardings(
    abstract_state(recipe), shardings(recipe, mesh)
  )


def shardings(recipe: schema.Recipe, mesh: jax.sharding.Mesh) -> step.Carry:
  """The shardings of all arrays of state and memory."""
  splits = network.splits(recipe.model)
  return mesh_lib.shardings(mesh, abstract_state(recipe), splits)


class Numbers(NamedTuple):
  """Numbers of a run that its compiled programs take as arguments.

  Runs that differ in nothing else share what one of them has compiled.
  """

  seed: int
  learning_rate: float


def numbers(recipe: schema.Recipe) -> Numbers:
  """The numbers of a run."""
  seed = np.uint32(recipe.seed)  # Below 2**32.
  return Numbers(seed, recipe.train.learning_rate)  # type: ignore[arg-type]


def creators(
  recipe: schema.Recipe, mesh: jax.sharding.Mesh
) -> tuple[Callable[..., run_state.TrainState], Callable[[], network.State]]:
  """Compiled functions that make the first state and an empty memory.

  The first takes the parameters, which are donated, or draws them.
  """
  state, memory = shardings(recipe, mesh)

  def create(
    seed: int, params: shapes.PyTree | None = None
  ) -> run_state.TrainState:
    return init_state(dataclasses.replace(recipe, seed=seed), params)

  creates = jax.jit(create, out_shardings=state, donate_argnums=1)
  return (
    functools.partial(creates, numbers(recipe).seed),
    jax.jit(functools.partial(init_memory, recipe), out_shardings=memory),
  )


def update(
  recipe: schema.Recipe, mesh: jax.sharding.Mesh
) -> jax.stages.Wrapped:
  """The compiled function of some updates (`step.train_chunk`).

  It takes the run's `numbers` first. State and memory are donated.
  """

  def train_chunk(  # Profiles show the name.
    own: Numbers,
    state: run_state.TrainState,
    memory: network.State,
    segments: segment_lib.Segment,
  ) -> tuple[run_state.TrainState, network.State, step.UpdateMetrics]:
    train = dataclasses.replace(recipe.train, learning_rate=own.learning_rate)
    numbered = dataclasses.replace(recipe, train=train, seed=own.seed)
    return step.train_chunk(state, memory, segments, recipe=numbered)

  return jax.jit(
    train_chunk,
    donate_argnums=(1, 2),
    out_shardings=(*shardings(recipe, mesh), mesh_lib.replicated(mesh)),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
