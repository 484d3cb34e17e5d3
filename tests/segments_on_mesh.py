"""What test_gradient_segments.py judges: several segments on a mesh of eight.

python -m tests.segments_on_mesh FOLDER writes FOLDER/result.json.
"""

import json
import os
import sys

import jax

from tests import corpus
from tests import sharded  # Also forces eight devices.
from transformer_xl import mesh as mesh_lib
from transformer_xl.data import streams
from transformer_xl.training import programs

UPDATES, SEGMENTS = 2, 3
# The options of later models, on every axis of the mesh.
MODERN = {
  "model.norm": "rms",
  "model.pre_norm": True,
  "model.final_norm": True,
  "model.feed_forward": "swiglu",
  "model.qk_norm": True,
  "model.num_kv_heads": 2,
}
# Predictions that only training makes, and a memory of a drawn length.
AUXILIARY = {
  "model.auxiliary.layers": "own",
  "model.auxiliary.num_targets": 2,
  "train.mem_len_low": 0,
}
FIELDS = {
  "train.gradient_segments": SEGMENTS,
  "model.layers": ("attention:3", "attention"),
}


def train(data_dir, axes, **updates):
  """Parameters and metrics after two updates of three segments each."""
  config = sharded.make_config(data_dir, axes, **FIELDS | updates)
  devices = jax.devices() if axes == sharded.MIXED else jax.devices()[:1]
  mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
  with jax.set_mesh(mesh):
    segments = streams.device_segments(
      sharded.stream(config),
      *(0, UPDATES * SEGMENTS),
      mesh_lib.segments(mesh),
    )
    update = programs.update(config.recipe, mesh)
    state, _, metrics = update(
      programs.numbers(config.recipe), *sharded.start(config, mesh), segments
    )
  assert metrics.sums.nll.shape == (UPDATES,)
  return jax.device_get((state.params, metrics))


def main(folder):
  data_dir = corpus.write(os.path.join(folder, "data"))
  expected = train(data_dir, (1, 1, 1))
  config = sharded.make_config(data_dir, **FIELDS)
  first = sharded.first_values(config)[0].params
  parts = {"train.accumulation_steps": 2}
  mixed = sharded.MIXED
  result = {
    "moved": sharded.differences((first, expected[1]), expected)["parameters"],
    "mesh": sharded.differences(expected, train(data_dir, mixed)),
    "modern": sharded.differences(
      train(data_dir, (1, 1, 1), **MODERN), train(data_dir, mixed, **MODERN)
    ),
    "auxiliary": sharded.differences(
      train(data_dir, (1, 1, 1), **AUXILIARY),
      train(data_dir, mixed, **AUXILIARY),
    ),
    "accumulated": sharded.differences(
      expected, train(data_dir, mixed, **parts)
    ),
  }
  with open(os.path.join(folder, "result.json"), "w") as file:
    json.dump(result, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
