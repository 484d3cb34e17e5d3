"""What test_lora.py judges; two forced devices take their own process.

python -m tests.adapters_on_mesh FOLDER writes FOLDER/result.json.
"""

import functools
import json
import os
import pathlib
import sys

import jax
from flax import traverse_util

from tests import comparison
from tests import corpus
from tests.analysis import runs
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import trained_model

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
SIZES = {"model.model_dim": 16, "model.num_heads": 4, "model.ff_dim": 32}


def train(data_dir, folder, fsdp):
  """The newest state of a run on so many devices."""
  config = corpus.config(
    data_dir,
    **SIZES,
    **{
      "train.init_from": f"{folder}/source",
      "train.lora.rank": 2,
      "train.optimizer": "sgd",
      "train.learning_rate": 0.5,
      "train.num_steps": 3,
      "train.segments_per_call": 1,
      "mesh.data": 1,
      "mesh.fsdp": fsdp,
      "mesh.tensor": 1,
    },
  )
  workdir = f"{folder}/on_{fsdp}"
  devices = jax.devices()[:fsdp]
  with_devices = programs.make_mesh
  programs.make_mesh = functools.partial(with_devices, devices=devices)
  loop.train(config, workdir)
  programs.make_mesh = with_devices
  mesh = mesh_lib.make_mesh(config.mesh, devices=devices)
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint)
  target = programs.sharded_abstract_state(config.recipe, mesh)
  run = checkpoints.restore_newest(*target)
  checkpoints.close()
  return config, mesh, run.state


def main():
  folder = sys.argv[1]
  data_dir = corpus.write(pathlib.Path(folder, "data"))
  source = runs.write(data_dir, f"{folder}/source", **SIZES)
  _, _, one = train(data_dir, folder, 1)
  config, mesh, two = train(data_dir, folder, 2)
  place = programs.sharded_abstract_state(config.recipe, mesh)[0]
  name = ("layers", "0", "attention", "query")
  base = traverse_util.flatten_dict(place.base)[name]
  adapter = traverse_util.flatten_dict(two.params)[(*name[:-1], "query_lora_a")]
  drawn = jax.jit(programs.init_state, static_argnums=0)(
    config.recipe, trained_model.load(source, f"{folder}/source").params
  )
  alone = load.replaced(config, {"mesh.fsdp": 1})
  workdir = f"{folder}/on_2"
  loaded = trained_model.load_on_one_device(alone, workdir).params
  whole = trained_model.load(config, workdir).params
  result = {
    "devices": len(adapter.sharding.device_set),
    "shards": {
      "base": base.sharding.shard_shape(base.shape),
      "adapter": adapter.sharding.shard_shape(adapter.shape),
    },
    "change": comparison.difference(two.params, drawn.params),
    "difference": comparison.difference(two.params, one.params),
    "loaded": comparison.difference(loaded, whole),
  }
  pathlib.Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
  main()
