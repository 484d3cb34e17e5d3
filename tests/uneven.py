"""What test_uneven_lanes.py judges: lanes that eight devices do not divide.

python -m tests.uneven FOLDER GROUP writes FOLDER/result.json. GROUP is
`training` or `evaluation`. All is done on one device, which has no empty lanes,
and on a mesh, which has; updates on the mesh read their lanes in two parts.
"""

import json
import math
import os
import sys

import jax
import jax.numpy as jnp

from tests import corpus
from tests import sharded  # Also forces eight devices.
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.data import streams
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation.dynamic import evaluator as dynamic_evaluator
from transformer_xl.evaluation.dynamic import update as update_lib
from transformer_xl.training import programs

LANES, SEGMENTS = 6, 4
MESHES = {"alone": (1, 1, 1), "mixed": (2, 2, 2)}
PARTS = {"alone": 1, "mixed": 2}
CONFIG = sharded.CONFIG | {
  "train.batch_size": LANES,
  "model.dropout_rate": 0.1,
  "model.attention_dropout_rate": 0.1,
  "eval.batch_size": LANES - 1,
  # Only the evaluation that learns looks at these.
  "eval.dynamic.kind": "rms",
  "eval.cache.size": 12,
}


def make_config(data_dir, name):
  names = ("mesh.data", "mesh.fsdp", "mesh.tensor")
  axes = dict(zip(names, MESHES[name], strict=True))
  parts = {"train.accumulation_steps": PARTS[name]}
  return corpus.config(data_dir, **CONFIG, **axes, **parts)


def train(config, mesh):
  """What some updates lead to."""
  create_state, create_memory = programs.creators(config.recipe, mesh)
  state = create_state()
  memory = create_memory()
  segments = streams.device_segments(
    sharded.stream(config),
    0,
    SEGMENTS,
    mesh_lib.segments(mesh),
    parts=config.train.accumulation_steps,
  )
  update = programs.update(config.recipe, mesh)
  numbers = programs.numbers(config.recipe)
  state, memory, metrics = update(numbers, state, memory, segments)
  result = {
    "losses": metrics.sums.nll,
    "num_tokens": metrics.sums.num_tokens,
    "memory": memory.layers[0].hiddens,
    "query": state.params["layers"]["0"]["attention"]["query"],
  }
  return result | {"lanes_read": segments.inputs.shape[1]}


def evaluate(config, mesh):
  """Sums of losses with numbers of tokens, and the use of memory."""
  state, _ = programs.shardings(config.recipe, mesh)
  params = jax.device_put(tiny.params(config.model), state.params)
  fixed = evaluator.Evaluator(config.scoring, mesh, mem_len=12)(params)
  report = attention_use.Report(
    config.scoring, mesh, mem_len=config.train.mem_len
  )
  use = report(params, should_stop=lambda: False)
  rule = update_lib.Rule(*map(jnp.float32, (1e-4, 0.02)))
  adaptive = dynamic_evaluator.DynamicEvaluator(
    config.scoring, mesh, mem_len=12
  )
  (learning,) = adaptive(params, rule)
  return {
    "fixed": fixed[:2],
    "learning": learning[:2],
    "use": [*use.values()],
  }


def main(folder, group):
  data_dir, result = corpus.write(os.path.join(folder, "data")), {}
  function = {"training": train, "evaluation": evaluate}[group]
  for name, axes in MESHES.items():
    config = make_config(data_dir, name)
    devices = jax.devices()[: math.prod(axes)]
    mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
    with jax.set_mesh(mesh):
      result[name] = function(config, mesh)
  plain = jax.tree.map(
    lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, result
  )
  with open(os.path.join(folder, "result.json"), "w") as file:
    json.dump(plain, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
