"""A small run on four forced devices, and one that forgets an all-reduce.

`python -m tests.check.on_meshes FOLDER` leaves `result.json` in FOLDER.
"""

import functools
import json
import os
import pathlib
import sys

import jax
from jax import P

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import check
from transformer_xl.check import on_mesh
from transformer_xl.check import small_run
from transformer_xl.training import step

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)


def own_gradient(gradient, loss, params, base, memory, segment, key):
  """Every device keeps the gradient of its own lanes as if it were that of all.

  What an all-reduce should have added up is declared to be equal.
  """
  lanes = P(mesh_lib.LANES)
  by_layer = jax.tree.map(lambda _: P(None, mesh_lib.LANES), memory.layers)
  memory_at = memory._replace(layers=by_layer, length=lanes)

  def compute(params, memory, segment, key):
    return gradient(loss, params, base, memory, segment, key)

  return jax.shard_map(
    compute,
    in_specs=(P(), memory_at, lanes, P()),
    out_specs=(P(), P(), memory_at),
    check_vma=False,
  )(params, memory, segment, key)


def main(folder):
  lanes, *_, all_axes = check.make_meshes()
  findings = []
  for mesh in (lanes, all_axes):
    findings += small_run.check_run("float32", mesh, None)
  step._gradient = functools.partial(own_gradient, step._gradient)
  faulty = small_run.check_run("float32", lanes, None)
  result = {
    "meshes": [on_mesh.describe(mesh) for mesh in (lanes, all_axes)],
    "errors": {
      f"{found.part}, {found.case}": found.error for found in findings
    },
    "wrong": [str(found) for found in findings if not found.passed],
    "wrong without the all-reduce": [
      found.part for found in faulty if not found.passed
    ],
  }
  (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
