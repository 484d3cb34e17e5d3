"""What test_sharding.py judges; eight forced devices take their own process.

python -m tests.sharded FOLDER GROUP writes FOLDER/result.json. What is
characteristic is in the first group, the other meshes are in the second.
"""

import dataclasses
import functools
import json
import math
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests import comparison
from tests import corpus
from tests import kinds
from tests.analysis import runs
from transformer_xl import mesh as mesh_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator as evaluator_lib
from transformer_xl.evaluation.dynamic import evaluator as dynamic_evaluator
from transformer_xl.evaluation.dynamic import update as update_lib
from transformer_xl.model import sparse_tails
from transformer_xl.planning import plan
from transformer_xl.training import initial_parameters
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import run_state

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

STEPS, COUNT = 6, 2  # As three chunks.
sparse_tails._ROWS = 1  # The few tokens of a device fill no tile.
CONFIG = {
  "model.model_dim": 16,
  "model.num_heads": 4,
  "model.head_dim": 4,
  "model.ff_dim": 32,
  "model.cutoffs": (16,),
  "model.div_val": 2,
  "model.cluster_capacities": (0.4,),  # Some segments have more, some less.
  "train.batch_size": 16,
  "train.optimizer": "sgd",
  "train.clip_norm": 0.25,
  "train.learning_rate": 0.5,
}
COMPRESSED = kinds.model(kinds.compressing(), num_tokens=20)
MIXERS = {
  "model.num_layers": 4,
  "model.layers": (
    "attention",
    kinds.mixer(attends=False),
    kinds.mixer(has_gradient_to_memory=False),
    kinds.mixer(writes_segments=True),
  ),
  "model.num_memory_tokens": 2,
  "train.gradient_segments": 2,
}
MIXED = (2, 2, 2)
MESHES = {
  "data": (8, 1, 1),
  "fsdp": (1, 8, 1),
  "tensor": (4, 1, 2),
}
FEWER = {"two": (1, 2, 1), "four": (2, 1, 2)}  # Devices of the eight.


def make_config(data_dir, mesh=(8, 1, 1), **updates):
  names = ("mesh.data", "mesh.fsdp", "mesh.tensor")
  axes = dict(zip(names, mesh, strict=True))
  return corpus.config(data_dir, **CONFIG, **axes, **updates)


def stream(config):
  return streams.TrainStream(
    token_file.open_split(f"{config.data.dir}/{corpus.NAME}", "train"),
    num_lanes=config.train.batch_size,
    segment_len=config.train.segment_len,
    resets="wrap",
  )


def plain(config):
  """The same updates on one device, without a mesh."""
  state, memory = jax.tree.map(jnp.asarray, first_values(config))
  update = jax.jit(
    functools.partial(step_lib.train_chunk, recipe=config.recipe)
  )
  segments = stream(config).read(0, STEPS, slice(None))
  state, _, metrics = update(state, memory, jax.tree.map(jnp.asarray, segments))
  assert len(state.params["softmax"]["bias"].sharding.device_set) == 1
  return jax.device_get((state.params, metrics))


def updates(config, mesh, state, memory, *, first=0, end=STEPS):
  """As the training loop makes them."""
  parts = []
  for step in range(first, end, COUNT):
    with jax.set_mesh(mesh):
      segments = streams.device_segments(
        stream(config), step, COUNT, mesh_lib.segments(mesh)
      )
      state, memory, metrics = compiled(config, mesh)(
        programs.numbers(config), state, memory, segments
      )
    parts.append(jax.device_get(metrics))
  metrics = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
  return state, memory, metrics


compiled = functools.cache(programs.update)


def start(config, mesh):
  """The same for every mesh, since drawing takes longest to compile."""
  state, _ = first_values(config)
  first = state, programs.init_memory(config.recipe)
  return jax.device_put(first, programs.shardings(config.recipe, mesh))


def first_values(config):
  """State and memory, drawn on one device."""
  return draw_once(config.data.dir, config.model)


@functools.cache
def draw_once(data_dir, model):
  """Those of a model, whatever the mesh is."""
  config = dataclasses.replace(make_config(data_dir), model=model)
  inits = programs.init_state, programs.init_memory
  return jax.device_get(
    tuple(jax.jit(functools.partial(init, config))() for init in inits)
  )


def drawn(config):
  """Parameters that are split from the beginning."""
  mesh = mesh_lib.make_mesh(config.mesh)
  create, _ = programs.creators(config.recipe, mesh)
  with jax.set_mesh(mesh):
    state = create()
  return jax.device_get(state.params)


def differences(expected, found):
  """Relative differences of losses and of parameters."""
  return {
    "loss": comparison.difference(found[1].sums.nll, expected[1].sums.nll),
    "parameters": comparison.difference(found[0], expected[0]),
  }


def compare(data_dir, expected, mesh, **changes):
  config = make_config(data_dir, mesh, **changes)
  devices = jax.devices()[: math.prod(mesh)]
  device_mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
  before = start(config, device_mesh)
  state, memory, metrics = updates(config, device_mesh, *before)
  after = jax.device_get((state.params, metrics))
  attention = state.params["layers"]["0"][config.model.layers[0]]
  return differences(expected, after) | {
    "all_given_away": all(x.is_deleted() for x in jax.tree.leaves(before)),
    "devices": len(attention["query"].sharding.device_set),
    "shards": {
      name: array.addressable_shards[0].data.shape
      for name, array in {
        "query": attention["query"],
        "output": attention["output"],
        "table_0": state.params["embedding"]["table_0"],
        "bias": state.params["softmax"]["bias"],
        "memory": memory.layers[0].hiddens,
        "length": memory.length,
      }.items()
    },
  }


def collectives(data_dir, mesh):
  """The instructions of an update that gather or reduce."""
  config = make_config(data_dir, mesh)
  lowered = plan.lower_updates(
    config.recipe,
    config.data,
    programs.make_mesh(config.recipe, config.mesh),
    count=COUNT,
  )
  lines = lowered.compile().as_text().splitlines()
  return [line for line in lines if re.search(r" all-(gather|reduce)\(", line)]


def move(data_dir, folder):
  """Saves on eight devices, goes on there and on four of them."""
  config = make_config(data_dir, (2, 2, 2))
  mesh = mesh_lib.make_mesh(config.mesh)
  state, memory, _ = updates(config, mesh, *start(config, mesh), end=2)
  checkpoints = checkpoint.Checkpoints(folder, config.checkpoint)
  checkpoints.save(run_state.RunState(state, memory))
  stayed = updates(config, mesh, state, memory, first=2)
  checkpoints.close()
  four = jax.make_mesh(
    (2, 2, 1),
    mesh_lib.AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[4:],
  )
  checkpoints = checkpoint.Checkpoints(folder, config.checkpoint)
  restored = checkpoints.restore_newest(
    *programs.sharded_abstract_state(config.recipe, four)
  )
  checkpoints.close()
  devices = restored.memory.layers[0].hiddens.sharding.device_set
  moved = updates(config, four, restored.state, restored.memory, first=2)
  found = jax.device_get((moved[0].params, moved[2]))
  expected = jax.device_get((stayed[0].params, stayed[2]))
  return differences(expected, found) | {
    "devices": sorted(device.id for device in devices),
    "step": int(moved[0].step),
  }


def evaluations(data_dir, mesh, **changes):
  """A split's loss by either memory, and how keys and values are split."""
  result = {}
  for memory in ("hidden", "key_value"):
    settings = {"eval.memory": memory, "eval.batch_size": 16, **changes}
    config = make_config(data_dir, mesh, **settings)
    device_mesh = mesh_lib.make_mesh(config.mesh)
    params = start(config, device_mesh)[0].params
    with jax.set_mesh(device_mesh):
      evaluator = evaluator_lib.Evaluator(
        config.scoring, device_mesh, mem_len=12
      )
      result[memory] = evaluator(params).nll
      reader = evaluator.mesh_reader
      start_state = reader.start(reader.freeze(params))
      first = jax.tree.leaves(start_state)[0]
  return result | {"shard": first.addressable_shards[0].data.shape}


def adaptive_evaluation(data_dir, mesh):
  """The loss of an evaluation that learns, and how a lane's copy is split."""
  updates = {
    "eval.batch_size": 4,
    "eval.dynamic.kind": "sgd",
    "eval.cache.size": 12,
  }
  config = make_config(data_dir, mesh, **updates)
  devices = jax.devices()[: math.prod(mesh)]
  device_mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
  params = start(config, device_mesh)[0].params
  rule = update_lib.Rule(*map(jnp.float32, (0.1, 0.02)))
  with jax.set_mesh(device_mesh):
    evaluator = dynamic_evaluator.DynamicEvaluator(
      config.scoring, device_mesh, mem_len=12
    )
    (score,) = evaluator(params, rule)
    query = evaluator._start(params).params["layers"]["0"]["attention"]["query"]
  return {
    "nll": score.nll,
    "query": query.addressable_shards[0].data.shape,
  }


def initial(data_dir, folder, mesh):
  """Parameters of another run, with one more symbol."""
  source, larger = (os.path.join(folder, name) for name in ("source", "larger"))
  if not os.path.exists(source):
    runs.write(data_dir, source, **CONFIG)
    symbols, corpus.SYMBOLS = corpus.SYMBOLS, (*corpus.SYMBOLS, "v")
    corpus.write(larger)
    corpus.SYMBOLS = symbols
  config = make_config(larger, mesh, **{"train.init_from": source})
  devices = jax.devices()[: math.prod(mesh)]
  device_mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
  with jax.set_mesh(device_mesh):
    params, record = initial_parameters.load(
      config.recipe, config.data.dataset_dir, device_mesh
    )
  tables = params["embedding"]
  return jax.device_get(params), {
    "sha256": record["params_sha256"],
    "shards": {
      name: table.addressable_shards[0].data.shape
      for name, table in tables.items()
      if name.startswith("table")
    },
  }


def characteristic(data_dir, folder, expected):
  first = first_values(make_config(data_dir))[0].params, expected[1]
  split = drawn(make_config(data_dir, MIXED)), expected[1]
  return {
    "moved": differences(first, expected)["parameters"],
    "drawn": differences(first, split)["parameters"],
    "mixed": compare(data_dir, expected, MIXED),
    "restored": move(data_dir, os.path.join(folder, "run")),
  }


def others(data_dir, folder, expected):
  first = first_values(make_config(data_dir))[0].params, expected[1]
  alone, whole = initial(data_dir, folder, (1, 1, 1))
  spread, halves = initial(data_dir, folder, MIXED)
  moved = differences((alone, expected[1]), (spread, expected[1]))
  result = {
    name: compare(data_dir, expected, mesh)
    for name, mesh in (MESHES | FEWER).items()
  }
  result["evaluations"] = {
    name: evaluations(data_dir, mesh)
    for name, mesh in {**MESHES, "mixed": MIXED}.items()
  }
  result["mixers_evaluations"] = {
    "data": evaluations(data_dir, MESHES["data"], **MIXERS),
    "mixed": evaluations(data_dir, MIXED, **MIXERS),
  }
  result["moved"] = differences(first, expected)["parameters"]
  result["initial"] = {
    **{"whole": whole, "halves": halves, "moved": moved["parameters"]},
  }
  result["adaptive"] = {
    name: adaptive_evaluation(data_dir, mesh)
    for name, mesh in (("alone", (1, 1, 1)), ("mixed", MIXED))
  }
  result["accumulation"] = compare(
    data_dir, expected, MIXED, **{"train.accumulation_steps": 4}
  )
  result["collectives"] = collectives(data_dir, MESHES["fsdp"])
  expected = plain(make_config(data_dir, **COMPRESSED))
  accumulation = {"train.accumulation_steps": 2}
  result["compressed"] = compare(
    data_dir, expected, MIXED, **COMPRESSED, **accumulation
  )
  expected = plain(make_config(data_dir, **MIXERS))
  result["mixers"] = compare(data_dir, expected, MIXED, **MIXERS)
  return result


def main(folder, group):
  data_dir = corpus.write(os.path.join(folder, "data"))
  expected = plain(make_config(data_dir))
  made = {"characteristic": characteristic, "others": others}[group]
  with open(os.path.join(folder, "result.json"), "w") as file:
    json.dump(made(data_dir, folder, expected), file)


if __name__ == "__main__":
  main(*sys.argv[1:])
